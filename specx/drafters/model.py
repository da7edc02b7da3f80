"""A small model that drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specx.core.sampling import Distribution, LogitsReader, SamplingParams
from specx.drafters.base import POSITIONS, Draft, Drafter, GoOn, Models, Outlook, TextSettings
from specx.errors import BackendError, UsageError
from specx.runtime.backend import LogitsBackend, Parkable, ParkedState, check_state
from specx.runtime.prefill import prefill
from specx.runtime.vocabulary import readable

__all__ = ["ModelDrafter", "factory"]


class ModelDrafter:
    """A small model that draws its proposals one by one.

    Parameters
    ----------
    model
        Holds a prefix of the text, or after a restart a piece of it.
    reader
        How its logits become distributions; must mask what the verifier cannot emit.
    eog_ids
        Tokens that end the text, after which nothing is worth proposing: `Stop.eog_ids`. They stay
        in the draft.
    acceptance
        The acceptance rate by position, as far as it was measured.
    """

    kind = "model"
    free = False
    prior: Sequence[float] = (0.75,) * len(POSITIONS)

    def __init__(
        self,
        model: LogitsBackend,
        reader: LogitsReader,
        eog_ids: frozenset[int] = frozenset(),
        *,
        acceptance: Sequence[float] = (),
    ) -> None:
        if acceptance:
            further = [acceptance[-1]] * len(POSITIONS)
            self.prior = [*acceptance, *further][: len(POSITIONS)]
        self.name = model.name
        self.model = model
        self.reader = reader
        self.eog_ids = eog_ids
        self._alone = False
        self._n_prompt = 1
        self._first = 0
        """Position of the text that the model's own position 0 stands for."""

    def begin(self, settings: TextSettings) -> None:
        self.reader = replace(
            self.reader, params=settings.sampling, keep_logits=settings.keep_logits
        )
        self.eog_ids = settings.eog_ids
        self._alone = settings.alone
        self._n_prompt = settings.n_prompt

    def feed(self, tokens: Sequence[int], size: int, report: Callable[[int], None]) -> None:
        """Read `tokens`, all but the last.

        Raises
        ------
        ContextError
            If the model's context cannot hold them; nothing was fed then.
        """
        # An empty cache need not go on where a restart left it; nor may one whose restart an
        # earlier text caused, if drafts are to depend on this text alone.
        if not self.model.n_past or (self._alone and self._first):
            self.restart(0)
        own = readable(tokens[self._first :], self.model.n_vocab)
        prefill(self.model, own, size, report)

    @property
    def n_past(self) -> int:
        return self._first + self.model.n_past

    @property
    def n_ctx(self) -> int:
        return self._first + self.model.n_ctx

    def outlook(self, tokens: Sequence[int]) -> Outlook:
        """How far it lags, and what its context has room for."""
        read = max(self.n_past, self._n_prompt - 1)
        return Outlook(
            self.n_ctx - len(tokens) + 1, len(tokens) - 1 - read, unread=read - self.n_past
        )

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        random: np.random.Generator,
        go_on: GoOn | None = None,
        hindsight: int = 0,
    ) -> Draft:
        draft, clock = Draft(), self.model.clock
        lacking = readable(tokens[self.n_past :], self.model.n_vocab)
        self.model.checkpoint()
        while len(draft.ids) < limit:
            if go_on is not None and not go_on(len(draft.ids), None):
                break
            rows = self.model.forward(lacking, 1 + min(hindsight, len(lacking) - 1))
            answered = clock()
            self.reader.mask(rows)
            if len(rows) > 1:
                draft.hindsight = self._hindsight(rows[:-1], tokens)
            if go_on is not None and not go_on(len(draft.ids), rows[-1]):
                draft.core_seconds += clock() - answered
                break
            (chances,) = self.reader.read(rows[-1:], len(tokens) + len(draft.ids))
            token = self.draw(chances, random)
            draft.ids.append(token)
            draft.distributions.append(chances)
            draft.core_seconds += clock() - answered
            if token in self.eog_ids and len(draft.ids) < limit:
                draft.ended = "end token"
                break
            lacking = [token]
        return draft

    def draw(self, chances: Distribution, random: np.random.Generator) -> int:
        """One proposal."""
        return chances.draw(random.random())

    def truncate(self, n_past: int) -> None:
        if n_past < self._first:
            self.restart(n_past)
        else:
            self.model.truncate(n_past - self._first)

    def export_state(self) -> ParkedState:
        """A copy of the model's cache, with where in the text it begins; see `Parkable`.

        Raises
        ------
        BackendError
            If the model's cache cannot be copied.
        """
        if not isinstance(self.model, Parkable):
            raise BackendError(f"{self.name} has no cache that can be copied")
        state = self.model.export_state()
        return ParkedState(
            n_past=self.n_past, n_bytes=state.n_bytes, maker=self, data=(self._first, state)
        )

    def import_state(self, state: ParkedState) -> None:
        """Replace what the model holds by a copy that this drafter exported; see `Parkable`."""
        check_state(self, state)
        assert isinstance(self.model, Parkable)
        first, data = state.data
        self.restart(first)  # before the copy: an interrupt must not leave it at another position
        self.model.import_state(data)

    def restart(self, n_past: int) -> None:
        """Forget everything, and read the text from absolute position `n_past` on.

        Its proposals are then drawn from another Q, and judged by that Q: the output stays exact.
        """
        self.model.truncate(0)
        self._first = n_past

    def _hindsight(self, rows: NDArray[np.float32], tokens: Sequence[int]) -> list[float]:
        """Its probabilities of the text's last tokens, one for each of `rows`."""
        known = self.reader.read(rows, len(tokens) - len(rows))
        last = tokens[len(tokens) - len(rows) :]
        return [float(row.prob(token)) for row, token in zip(known, last, strict=True)]


class _Factory:
    name = "model"
    needs_model = True

    def make(self, models: Models) -> Drafter:
        """Draft with the session's second model.

        Raises
        ------
        UsageError
            If there is none.
        """
        model = models.drafter
        if model is None:
            raise UsageError("drafting with a model needs one; add a drafter, or draft by lookup")
        reader = LogitsReader(model.name, SamplingParams(), models.masked_draft)
        return ModelDrafter(model, reader, acceptance=models.acceptance)


factory = _Factory()
