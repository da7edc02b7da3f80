"""A probability table as a model: known truth for tests and for teaching.

The next token's probabilities are read from a table, whose format `specx_backends.toy_table` tells;
time is virtual and passes only by the costs that the table states.
"""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specx.errors import BackendError, ModelError, UsageError
from specx.runtime.backend import (
    BackendFactory,
    Clock,
    LoadOptions,
    LogitsBackend,
    ParkedState,
    check_forward,
    check_model_name,
    check_state,
    check_truncate,
    choose_n_ctx,
    reject_unsupported,
)
from specx.runtime.inspection import Inspection
from specx_backends.toy_table import ToyTable, parse_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["CLOCK", "Toy", "ToyFactory", "ToyTable", "ToyTokenizer", "VirtualClock", "backend"]

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
TOKEN_BYTES = 8
"""What a parked token is said to take."""
MOST_BYTES = 64 * 2**20  # a model's weights given by mistake are refused before they are read


class VirtualClock:
    """Seconds that pass only while a toy works."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self._now += seconds


CLOCK = VirtualClock()
"""The clock of every toy in this process: drafter and verifier spend the same time."""


class ToyTokenizer:
    """Encodes by the longest token that fits, from left to right."""

    def __init__(self, table: ToyTable, name: str) -> None:
        ids = {text: token for token, text in enumerate(table.tokens)}
        control = table.control_texts
        blank = [""] * table.padding
        self.eog_ids = frozenset(ids[text] for text in table.eog)
        self.padding_ids: NDArray[np.intp] = np.arange(len(table.tokens), table.n_vocab)
        self.bos_id = None if table.bos is None else ids[table.bos]
        self.eos_id = ids[table.eog[0]] if table.eog else None
        self.adds_bos, self.adds_eos = self.bos_id is not None, False
        self.chat_template = table.chat_template
        self._name = name
        self._texts = [*table.tokens, *blank]
        self._bytes = [b"" if text in control else _spelling(text) for text in self._texts]
        last_first = reversed(list(enumerate(self._bytes)))  # of two equals the lower id stays
        self._plain = {piece: token for token, piece in last_first if piece}
        self._special = self._plain | {text.encode(): ids[text] for text in control}

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of `text`.

        Raises
        ------
        UsageError
            If some part of `text` cannot be spelled with the table's tokens.
        """
        pieces = self._special if parse_special else self._plain
        tokens = [self.bos_id] if add_special and self.bos_id is not None else []
        rest = text.encode()
        while rest:
            piece = _longest_prefix(rest, pieces)
            if not piece:
                raise UsageError(self._complaint(rest))
            tokens.append(pieces[piece])
            rest = rest[len(piece) :]
        return tokens

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` adds to a text; empty for control and padding ids."""
        return self._bytes[token]

    def token_text(self, token: int) -> str:
        """The token as the table spells it; empty for padding ids."""
        return self._texts[token]

    def _complaint(self, rest: bytes) -> str:
        known = [text for text, piece in zip(self._texts, self._bytes, strict=True) if piece]
        shown = ", ".join(map(repr, known[:8])) + (", ..." if len(known) > 8 else "")
        character = rest.decode(errors="replace")[0]
        return f"{self._name} has no token for {character!r}; it can spell: {shown or 'nothing'}"


def _spelling(text: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(text)
    return bytes.fromhex(byte[1]) if byte else text.encode()


def _longest_prefix(rest: bytes, pieces: Mapping[bytes, int]) -> bytes:
    lengths = range(min(len(rest), max(map(len, pieces), default=0)), 0, -1)
    return next((rest[:n] for n in lengths if rest[:n] in pieces), b"")


class Toy(LogitsBackend):
    """A model that reads its logits from a `ToyTable`.

    Parameters
    ----------
    table
        What to answer.
    n_ctx
        Positions of the cache; by default the table's context.
    name
        For messages.
    source
        More facts for `describe`.

    Examples
    --------
    >>> toy = Toy(ToyTable(tokens=("a", "b"), rows={(): (0.5, 0.5), (1,): (1.0, 0.0)}))
    >>> toy.forward([0, 1], n_logits=2)
    array([[-0.6931472, -0.6931472],
           [ 0.       ,       -inf]], dtype=float32)
    """

    def __init__(
        self,
        table: ToyTable,
        *,
        n_ctx: int | None = None,
        name: str = "toy:table",
        source: Mapping[str, object] | None = None,
    ) -> None:
        self.name = name
        self.n_vocab = table.n_vocab
        self.n_ctx = table.context if n_ctx is None else n_ctx
        self.rollback = table.rollback
        self.tokenizer = ToyTokenizer(table, name)
        self.clock: Clock = CLOCK
        self._table = table
        self._source = dict(source or {})
        self._logits = {context: table.logits(context) for context in table.rows}
        self._past: list[int] = []
        self._checkpoint: int | None = None
        self._closed = False

    @property
    def n_past(self) -> int:
        """Tokens fed and not forgotten."""
        return len(self._past)

    def forward(self, tokens: Sequence[int], n_logits: int = 1) -> NDArray[np.float32]:
        """Append `tokens`; logits after each of the last `n_logits`, (n_logits, n_vocab)."""
        self._check_open()
        self._past.extend(check_forward(self, tokens, n_logits).tolist())
        CLOCK.advance(self._table.forward_seconds(len(tokens)))
        ends = range(self.n_past - n_logits + 1, self.n_past + 1)
        rows = [self._row(end) for end in ends]
        return np.array(rows, np.float32).reshape(n_logits, self.n_vocab)

    def truncate(self, n_past: int) -> None:
        """Forget everything from absolute position `n_past` on."""
        self._check_open()
        check_truncate(self, n_past)
        if n_past == self.n_past:
            return
        self._check_rollback(n_past)
        del self._past[n_past:]
        if self._checkpoint is not None and self._checkpoint > n_past:
            self._checkpoint = None
        CLOCK.advance(self._table.truncate_cost)

    def checkpoint(self) -> None:
        """Let `truncate` return to any position from `n_past` on."""
        self._check_open()
        if self.rollback == "none":
            raise BackendError(f"{self.name} cannot roll back (rollback = 'none' in its table)")
        self._checkpoint = self.n_past

    def export_state(self) -> ParkedState:
        """The tokens fed and not forgotten."""
        self._check_open()
        size = self.n_past * TOKEN_BYTES
        return ParkedState(n_past=self.n_past, n_bytes=size, maker=self, data=tuple(self._past))

    def import_state(self, state: ParkedState) -> None:
        """Hold the tokens of `state` instead; a checkpoint, where rollback is by one."""
        self._check_open()
        check_state(self, state)
        self._past = list(state.data)
        self._checkpoint = state.n_past if self.rollback == "checkpoint" else None

    def describe(self) -> dict[str, object]:
        """What is loaded, as JSON values."""
        return {
            "file": None,
            "bytes": None,
            **self._source,
            "quantisation": None,
            "n_vocab": self.n_vocab,
            "n_ctx": self.n_ctx,
            "devices": ["virtual"],
            "threads": None,
            "rollback": self.rollback,
            "versions": dict(backend.about()),
        }

    def close(self) -> None:
        """Refuse all further work."""
        self._closed = True

    def _row(self, end: int) -> NDArray[np.float32]:
        """Logits of what follows the first `end` tokens: the longest listed context's."""
        lengths = range(min(self._table.order, end), -1, -1)
        contexts = (tuple(self._past[end - length : end]) for length in lengths)
        return next(self._logits[c] for c in contexts if c in self._logits)

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError(f"{self.name} is closed; load it again")

    def _check_rollback(self, n_past: int) -> None:
        kept = {"native": 0, "checkpoint": self._checkpoint, "none": None}[self.rollback]
        if n_past > 0 and (kept is None or n_past < kept):
            last = "none" if kept is None else f"at {kept}"
            raise BackendError(
                f"{self.name}: cannot go back to {n_past} (rollback = '{self.rollback}', "
                f"last checkpoint: {last}); call checkpoint() there first"
            )


class ToyFactory:
    """Loads tables; the entry point ``toy``."""

    name = "toy"
    options = frozenset({"n_ctx", "offline"})

    def load(self, model: str, options: LoadOptions) -> Toy:
        """A toy over the table in the file `model`.

        Raises
        ------
        ModelError
            If there is no such file or it is not a table; names file, key and remedy.
        OptionError
            If an option is set that a toy cannot honour.
        """
        model = check_model_name(model)
        reject_unsupported(self, options)
        content = _content(Path(model))
        try:
            table = parse_table(tomllib.loads(content.decode()))
        except ModelError as error:
            raise ModelError(f"{model}: {error}") from None
        except (ValueError, RecursionError) as error:  # not UTF-8, or not TOML
            raise ModelError(f"{model}: not a TOML table ({error}); {REMEDY}") from None
        name = f"toy:{Path(model).name}"
        n_ctx = choose_n_ctx(options, ToyTokenizer(table, name), table.context)
        return Toy(table, n_ctx=n_ctx, name=name, source=_facts(model, content))

    def inspect(self, model: str, options: LoadOptions) -> Inspection:
        """What the table in the file `model` says; loading it takes no memory to speak of."""
        toy, path = self.load(model, options), Path(model)
        return Inspection(
            path=path,
            title="",
            architecture="table",
            quantisation="",
            n_params=0,
            n_bytes=path.stat().st_size,
            n_vocab=toy.n_vocab,
            tokenizer=toy.tokenizer,
            tokenizer_kind="longest match",
            n_ctx=toy.n_ctx,
            n_ctx_train=None,
            weights=0,
            mapped=False,
            cache=None,
        )

    def about(self) -> Mapping[str, object]:
        """What a toy runs on."""
        return {"python": platform.python_version(), "numpy": np.__version__}


REMEDY = "its format is described by: python -m pydoc specx_backends.toy_table"


def _content(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise ModelError(f"{path}: {size} bytes are no TOML table; {REMEDY}")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}; give the path of a TOML table") from None


def _facts(model: str, content: bytes) -> dict[str, object]:
    sha256 = hashlib.sha256(content).hexdigest()
    return {"file": model, "bytes": len(content), "sha256": sha256}


backend: BackendFactory = ToyFactory()
