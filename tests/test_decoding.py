"""The round loop over the toy backend: stops, contexts, seeds, its law, and planted faults."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from specx import Pair, SamplingParams, Session, Settings, Stop, Tally
from specx.core.exactness import target_law
from specx.core.sampling import Distribution, LogitsReader
from specx.drafters.base import Draft
from specx.drafters.model import ModelDrafter
from specx.errors import BackendError, ContextError, LogitsError, UsageError, VocabularyError
from specx.runtime.backend import LogitsBackend
from specx.runtime.prefill import prefill
from specx.runtime.uncached import Uncached
from specx_backends.toy import Toy, ToyTable

WORDS = ("<s>", "</s>", "a", "b", "c", "d")
GREEDY, PLAIN = SamplingParams(temperature=0), SamplingParams(temperature=1, top_p=1)


def table(seed: int = 0, *, order: int = 2, eos: float = 0.0, **more: Any) -> ToyTable:
    """A random table over a, b, c, d that looks back `order` tokens."""
    rng = np.random.default_rng(seed)
    rows: dict[tuple[int, ...], list[float]] = {}
    contexts: list[tuple[int, ...]] = [()]
    for _ in range(order):
        contexts += [(*c, t) for c in contexts for t in range(2, 6)]
    for context in dict.fromkeys(contexts):
        rows[context] = [0.0, eos, *(rng.dirichlet(np.ones(4)) * (1 - eos)).tolist()]
    return ToyTable(tokens=WORDS, rows=rows, bos="<s>", eog=("</s>",), **more)


def cycle(**more: Any) -> ToyTable:
    """Writes abcdabcd... with certainty."""
    follows = {(): 2, (2,): 3, (3,): 4, (4,): 5, (5,): 2}
    rows = {context: np.eye(6)[token].tolist() for context, token in follows.items()}
    return ToyTable(tokens=WORDS, rows=rows, bos="<s>", eog=("</s>",), **more)


def generate(
    pair: Pair,
    n: int = 32,
    *,
    prompt: tuple[int, ...] = (0,),
    stops: tuple[str, ...] = (),
    ignore_eos: bool = False,
    **settings: Any,
) -> tuple[list[int], str, Stop, Tally]:
    """Tokens and text after `prompt`, and how it ended; the pair is reset first."""
    stop = Stop(pair.verifier.tokenizer, n, stops=stops, ignore_eos=ignore_eos)
    with Session(pair) as session:
        rounds = session.rounds(prompt, Settings(**settings), stop)
        tokens = rounds.generation.tokens
        for _ in rounds:
            assert stop.reason or all(model.n_past < len(tokens) for model in pair.models)
    result = rounds.result
    return result.tokens, result.text, stop, result.tally


@pytest.mark.parametrize("gamma", [0, 1, 3, 8])
@pytest.mark.parametrize("rollback", ["native", "checkpoint"])
def test_greedy_text_does_not_depend_on_the_drafter(gamma: int, rollback: str) -> None:
    plain = generate(Pair(Toy(table(1))), sampling=GREEDY)[:2]
    pair = Pair(Toy(table(1, rollback=rollback)), Toy(table(2, rollback=rollback)))
    assert generate(pair, gamma=gamma, sampling=GREEDY)[:2] == plain


def test_a_tree_of_drafts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    propose = ModelDrafter.propose

    def tree(*args: Any) -> Draft:
        draft = propose(*args)
        draft.parents = [-1] * len(draft.ids)
        return draft

    monkeypatch.setattr(ModelDrafter, "propose", tree)
    with pytest.raises(UsageError, match=r"the draft is a tree \(parents \[-1, -1\]\)"):
        generate(Pair(Toy(table(1)), Toy(table(2))), gamma=2)


def test_greedy_text_without_cache_is_the_same() -> None:
    pair = Pair(Uncached(Toy(table(1))), Uncached(Toy(table(2))))
    plain = generate(Pair(Toy(table(1))), sampling=GREEDY)
    assert generate(pair, sampling=GREEDY)[:2] == plain[:2]


def test_a_drafter_that_is_the_verifier_is_always_believed() -> None:
    *_, tally = generate(Pair(Toy(table(1)), Toy(table(1))), 40, sampling=PLAIN, gamma=4)
    assert (tally.alpha, tally.kept, tally.tau) == (1, 1, 5)
    assert (tally.n_tokens, tally.rounds) == (40, 8)


@pytest.mark.parametrize("drafted", [False, True])
def test_a_seed_repeats_its_text_and_another_does_not(drafted: bool) -> None:
    pair = Pair(Toy(table(1)), Toy(table(2)) if drafted else None)
    one, again, other = (generate(pair, seed=s, sampling=PLAIN)[0] for s in (7, 7, 8))
    assert one == again != other


def test_gamma_zero_is_plain_decoding_to_the_token() -> None:
    plain = generate(Pair(Toy(table(1))), seed=3, sampling=PLAIN)[0]
    assert generate(Pair(Toy(table(1)), Toy(table(2))), seed=3, gamma=0, sampling=PLAIN)[0] == plain


class KeepsOneTooMany:
    """Planted fault: a cache that keeps a rejected token in the place of its correction."""

    def __init__(self, model: LogitsBackend) -> None:
        self.model, self.stale = model, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    @property
    def n_past(self) -> int:
        return self.model.n_past - self.stale

    def truncate(self, n_past: int) -> None:
        if n_past == 0:
            self.stale = 0
            self.model.truncate(0)
        elif n_past < self.n_past:
            self.model.truncate(n_past + self.stale + 1)
            self.stale += 1


TRIALS = 4000
CRITICAL = 137.0
"""Chi-square with at most 63 degrees of freedom exceeds it with probability 1e-6 or less."""


def two_round_chi_square(verifier: LogitsBackend) -> float:
    """Texts of four tokens over at least two rounds, against their exact law."""
    pair, rows = Pair(verifier, Toy(table(2))), table(1).rows
    texts = Counter(
        tuple(generate(pair, 4, seed=seed, gamma=1, sampling=PLAIN)[0]) for seed in range(TRIALS)
    )
    law = target_law(lambda c: Distribution(np.array(rows[c[-2:]])), 4)
    cells = [(texts[key], TRIALS * chance) for key, chance in law.items()]
    large = sorted(cell for cell in cells if cell[1] >= 5)[:62]
    rest = TRIALS - sum(seen for seen, _ in large), TRIALS - sum(mass for _, mass in large)
    return float(sum((seen - mass) ** 2 / mass for seen, mass in [*large, rest]))


def test_the_law_over_two_rounds_is_the_targets() -> None:
    assert two_round_chi_square(Toy(table(1))) < CRITICAL


def test_a_cache_one_too_long_is_caught() -> None:
    assert two_round_chi_square(KeepsOneTooMany(Toy(table(1)))) > CRITICAL


def test_ends_at_an_end_token_inside_an_accepted_run() -> None:
    follows = {(): 2, (2,): 3, (3,): 1, (1,): 2}
    rows = {c: np.eye(6)[t].tolist() for c, t in follows.items()}
    ending = ToyTable(tokens=WORDS, rows=rows, bos="<s>", eog=("</s>",))
    for drafter in (None, Toy(ending)):
        pair = Pair(Toy(ending), drafter)
        tokens, text, stop, tally = generate(pair, 20, sampling=GREEDY, gamma=5)
        assert (tokens, text, stop.reason) == ([2, 3], "ab", "eos")
        assert tally.n_tokens == 2
    assert tally.accepted == 3  # the drafted end token was accepted, and counts as such
    tokens, _, stop, _ = generate(pair, 6, sampling=GREEDY, ignore_eos=True)
    assert (tokens, stop.reason) == ([2, 3, 1, 2, 3, 1], "length")


@pytest.mark.parametrize("draft", ["model", "lookup"])
def test_drafts_go_on_past_end_tokens_that_are_ignored(draft: str) -> None:
    follows = {(): 2, (2,): 3, (3,): 1, (1,): 2}
    rows = {c: np.eye(6)[t].tolist() for c, t in follows.items()}
    pair = Pair(*(Toy(ToyTable(tokens=WORDS, rows=rows, eog=("</s>",))) for _ in range(2)))
    for ignore_eos, longest in ((True, 5), (False, 1)):
        tokens = [2, 3, 1, 2, 3, 1, 2, 3]  # an end token comes next
        stop = Stop(pair.verifier.tokenizer, 40, ignore_eos=ignore_eos)
        settings = Settings(sampling=GREEDY, gamma=5, draft=(draft,))
        drafts = [done.draft for done in Session(pair).rounds(tokens, settings, stop)]
        assert max(len(draft.ids) for draft in drafts) == longest
        assert {one.ended for one in drafts} == ({""} if ignore_eos else {"end token"})


@pytest.mark.parametrize("first", [0, 3])
def test_a_drafter_proposes_as_many_as_its_context_holds(first: int) -> None:
    """The last proposal is drawn, and never fed."""
    model = Toy(cycle(), n_ctx=9)
    drafter = ModelDrafter(model, LogitsReader("drafter", GREEDY))
    drafter.restart(first)
    tokens = [2] * (6 + first)
    assert drafter.outlook(tokens).limit == 4
    random = np.random.default_rng(0)
    assert len(drafter.propose(tokens, 4, random).ids) == 4
    drafter.truncate(len(tokens) - 1)
    with pytest.raises(ContextError, match="exceed the context of 9"):
        drafter.propose(tokens, 5, random)


@pytest.mark.parametrize("gamma", [0, 1, 4, 7])
def test_ends_before_a_stop_string_that_spans_tokens(gamma: int) -> None:
    pair = Pair(Toy(cycle()), Toy(cycle()))
    tokens, text, stop, _ = generate(pair, 40, sampling=GREEDY, gamma=gamma, stops=("cda", "zz"))
    assert (text, stop.reason) == ("ab", "stop")
    assert tokens == [2, 3, 4, 5, 2]  # those that complete the stop string are there


@pytest.mark.parametrize("n", [0, 1, 2, 5, 7])
def test_ends_at_the_length_limit(n: int) -> None:
    tokens, _, stop, tally = generate(Pair(Toy(cycle()), Toy(cycle())), n, sampling=GREEDY)
    assert (len(tokens), stop.reason, tally.n_tokens) == (n, "length", n)


@pytest.mark.parametrize(("n_ctx", "draft_ctx"), [(9, 50), (50, 9), (9, 9), (9, 5), (1, 50)])
def test_full_contexts(n_ctx: int, draft_ctx: int) -> None:
    pair = Pair(Toy(cycle(), n_ctx=n_ctx), Toy(cycle(), n_ctx=draft_ctx))
    tokens, text, stop, _ = generate(pair, 30, sampling=GREEDY)
    # The last token never needs a place of its own: it is emitted, not fed.
    assert (len(tokens), stop.reason) == ((30, "length") if n_ctx > 30 else (n_ctx, "context"))
    assert text == ("abcd" * 8)[: len(tokens)]


def test_a_prompt_longer_than_the_context_is_refused() -> None:
    with pytest.raises(ContextError, match="prompt has 5 tokens and the context .* holds 4"):
        Session(Pair(Toy(cycle(), n_ctx=4))).generate([0, 2, 3, 4, 5])


def test_prefill_reports_and_leaves_the_last_token() -> None:
    seen: list[int] = []
    model = Toy(cycle())
    prefill(model, [0, 2, 3, 4, 5, 2], size=2, report=seen.append)
    assert (seen, model.n_past) == ([2, 4, 5], 5)


def test_times_come_from_the_models_clock() -> None:
    costs = {"forward_cost": (1.0, 1.5, 2.0)}
    pair = Pair(Toy(cycle(**costs)), Toy(cycle(forward_cost=(0.25,))))
    *_, tally = generate(pair, 6, sampling=GREEDY, gamma=2)
    assert tally.rounds == 2
    assert tally.times.verify == 4.0  # three tokens fed, twice
    assert tally.times.draft == 1.0  # two steps, twice; catching up costs no more here
    assert tally.times.core == 0


def test_a_verifier_that_cannot_forget_decodes_plainly_only() -> None:
    stiff = Toy(cycle(rollback="none"))
    assert generate(Pair(stiff), 4, sampling=GREEDY)[1] == "abcd"
    with pytest.raises(BackendError, match="cannot forget tokens.*--no-draft"):
        Pair(stiff, Toy(cycle()))


def test_padding_is_never_emitted_and_only_shared_ids_are_drafted() -> None:
    wide, narrow = Toy(table(1, padding=3)), Toy(table(2))
    for pair in (Pair(wide, narrow), Pair(narrow, wide)):
        tokens = generate(pair, 64, sampling=PLAIN)[0]
        assert all(token < len(WORDS) for token in tokens)


def test_other_vocabularies_are_refused_naming_ids() -> None:
    words = ("<s>", "</s>", "a", "x", "c", "y")
    other = ToyTable(tokens=words, rows={(): [0, 0, 1, 0, 0, 0]}, bos="<s>", eog=("</s>",))
    with pytest.raises(
        VocabularyError, match="2 of 6 shared ids differ.*id 3 is 'x' in the drafter and 'b' in"
    ):
        Pair(Toy(cycle()), Toy(other))


def test_ids_that_one_side_lacks_do_not_matter() -> None:
    more = ToyTable(
        tokens=(*WORDS, "e"), rows={(): [0, 0, 0.2, 0.2, 0.2, 0.2, 0.2]}, bos="<s>", eog=("</s>",)
    )
    for verifier, drafter in ((more, table(1)), (table(1), more)):
        tokens = generate(Pair(Toy(verifier), Toy(drafter)), 200, sampling=PLAIN)[0]
        assert (6 in tokens) == (verifier is more)


def test_logits_that_are_nan_name_the_model_and_the_position() -> None:
    nan = float("nan")
    broken = ToyTable(tokens=WORDS, rows={(): [0, 0, 1, 0, 0, 0], (2,): [nan] * 6}, bos="<s>")
    with pytest.raises(LogitsError, match="toy:table at position 2: .*nan"):
        generate(Pair(Toy(broken)), sampling=GREEDY)


def test_settings_name_what_is_wrong() -> None:
    with pytest.raises(UsageError, match="gamma is -1"):
        Settings(gamma=-1)
    with pytest.raises(UsageError, match="unknown rule 'lucky'; known: .*token"):
        Settings(rule="lucky")
