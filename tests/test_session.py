"""A session keeps what two texts share, never more, and serves one generation at a time."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import curve

from specx import (
    LoadOptions,
    Observer,
    Pair,
    Result,
    SamplingParams,
    Session,
    Settings,
    Stop,
    get_backend,
)
from specx.drafters.base import Drafter
from specx.errors import BackendError, UsageError
from specx.runtime.backend import LogitsBackend, Rollback
from specx.runtime.uncached import Uncached
from specx.schedule import Costs, Decision, Fixed, Outcome, Schedule
from specx.schedule.costs.curve import Profile
from specx.session.decoding import Round
from specx.session.generation import Generation
from specx_backends.toy import CLOCK, Toy, ToyTable

TABLE = ToyTable(tokens=("<s>", "a", "b"), rows={(): (0.0, 0.5, 0.5)}, bos="<s>")
PLAIN = SamplingParams(temperature=1, top_p=1)
IN_USE = "toy:table is in use by another session"


def table(seed: int, **more: Any) -> ToyTable:
    """Two tokens decide the next: a wrong token in a cache changes the text."""
    rng = np.random.default_rng(seed)
    contexts = [(), *((a,) for a in range(4)), *((a, b) for a in range(4) for b in range(4))]
    rows = {context: rng.dirichlet(np.ones(4)).tolist() for context in contexts}
    return ToyTable(tokens=("a", "b", "c", "d"), rows=rows, **more)


def toys(rollback: Rollback) -> Pair:
    if rollback == "none":
        return Pair(Toy(table(1, rollback=rollback)))
    return Pair(Toy(table(1, rollback=rollback)), Toy(table(2, rollback=rollback)))


def demo(backend: str, verifier: Path, drafter: Path) -> Pair:
    options = LoadOptions(threads=1, n_ctx=512)
    load = get_backend(backend).load
    return Pair(load(str(verifier), options), load(str(drafter), options))


KINDS = ["native", "checkpoint", "none", "llamacpp", "hf", "mamba"]


@pytest.fixture(scope="module", params=KINDS)
def pairs(
    request: pytest.FixtureRequest,
    demo_verifier: Path,
    demo_drafter: Path,
    tiny_folders: Callable[[str], Path],
) -> Iterator[tuple[Pair, Pair]]:
    """Two pairs of equal models: for the session under test, and for fresh ones."""
    kind = request.param
    if kind in ("hf", "mamba"):
        pytest.importorskip("torch")
    if kind == "mamba":
        folder, load = str(tiny_folders("mamba")), get_backend("hf").load
        two = [Pair(load(folder, LoadOptions(n_ctx=512, dtype="float32"))) for _ in range(2)]
    elif kind in ("llamacpp", "hf"):
        two = [demo(kind, demo_verifier, demo_drafter) for _ in range(2)]
    else:
        two = [toys(kind) for _ in range(2)]
    yield two[0], two[1]
    for pair in two:
        pair.close()


def settings(pair: Pair, seed: int, gamma: Any = 3) -> Settings:
    return Settings(sampling=PLAIN, gamma=gamma if pair.drafter else 4, seed=seed)


def write(
    session: Session, tokens: Sequence[int], chosen: Settings, n: int = 12, **more: Any
) -> Result:
    stop = Stop(session.pair.verifier.tokenizer, n, ignore_eos=True)
    rounds = session.rounds(tokens, chosen, stop, **more)
    for _ in rounds:
        pass
    return rounds.result


def fresh_logits(model: LogitsBackend, tokens: Sequence[int]) -> Any:
    """After `tokens`, fed one by one to an empty cache."""
    model.truncate(0)
    for token in tokens:
        row = model.forward([token])
    return row


def words(pair: Pair, n: int, seed: int = 0) -> list[int]:
    most = min(pair.verifier.n_vocab, 300)
    ids: list[int] = np.random.default_rng(seed).integers(most // 2, most, n).tolist()
    return ids


# What the caches keep


def test_a_second_prompt_does_not_continue_the_first_ones_cache() -> None:
    """Cache b b c, prompt b b a: once the text that followed was the first prompt's."""
    warm = Session(toys("native"))
    write(warm, [1, 1, 2], Settings(sampling=PLAIN, seed=1))
    fresh = Session(toys("native"))
    chosen = Settings(sampling=PLAIN, seed=2)
    assert write(warm, [1, 1, 0], chosen).tokens == write(fresh, [1, 1, 0], chosen).tokens


SECOND: dict[str, Callable[[list[int], list[int]], list[int]]] = {
    "nothing in common": lambda first, text: [first[0] - 1, *first[1:]],
    "some": lambda first, text: [*first[:3], first[3] - 1, *first[4:]],
    "all": lambda first, text: list(first),
    "all of the text": lambda first, text: [*first, *text],
    "all, and more": lambda first, text: [*first, *text, first[2], first[4]],
    "a part of the text": lambda first, text: [*first, *text[:4]],
    "less": lambda first, text: first[:4],
    "one token": lambda first, text: first[:1],
}


@pytest.mark.parametrize("second", SECOND)
def test_a_second_prompt_reads_only_what_the_cache_lacks(
    pairs: tuple[Pair, Pair], second: str
) -> None:
    """Fed token by token, so that both sessions make their logits in equal chunks."""
    first = words(pairs[0], 6)
    with Session(pairs[0]) as warm:
        chosen = Settings(sampling=PLAIN, seed=1, gamma=0)
        text = write(warm, first, chosen, size=1).tokens
        tokens, held_before = SECOND[second](first, text), warm.pair.verifier.n_past
        again = write(warm, tokens, chosen, size=1)
        held = warm.pair.verifier.n_past
        assert held == len(tokens) + len(again.tokens) - 1
        common = common_prefix([*first, *text], tokens)
        if warm.pair.verifier.rollback == "native":
            assert again.n_reused == min(common, len(first) + len(text) - 1, len(tokens) - 1)
        elif warm.pair.verifier.rollback == "none" and common < held_before:
            assert again.n_reused == 0
        row = warm.pair.verifier.forward(again.tokens[-1:])
    with Session(pairs[1]) as fresh:
        assert again.tokens == write(fresh, tokens, chosen, size=1).tokens
    expected = fresh_logits(pairs[1].verifier, [*tokens, *again.tokens])
    if pairs[0].verifier.name.startswith("hf:"):
        assert np.allclose(row, expected, atol=2e-3)
    else:
        assert np.array_equal(row, expected)


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)))  # fmt: skip


def test_fifty_turns_end_as_fresh_sessions_would(pairs: tuple[Pair, Pair]) -> None:
    """Prompts that go on, go back, or begin anew; drafts of changing length; some broken off."""
    rng = np.random.default_rng(5)
    warm, text = Session(pairs[0]), words(pairs[0], 4)
    verifier = pairs[0].verifier
    tolerance = 0 if verifier.name.startswith("toy:") else 2e-2
    for turn in range(50):
        chosen = settings(pairs[0], turn, gamma=int(rng.integers(0, 6)))
        stop = Stop(verifier.tokenizer, int(rng.integers(1, 10)), ignore_eos=True)
        rounds = warm.rounds(text, chosen, stop)
        for _ in range(int(rng.integers(1, 8))):
            next(rounds, None)
        rounds.close()
        text = text + rounds.result.tokens
        assert verifier.n_past < len(text)
        row = verifier.forward(text[verifier.n_past :])
        expected = fresh_logits(pairs[1].verifier, text)
        assert np.allclose(row, expected, atol=tolerance, rtol=0), turn
        way = rng.integers(0, 4)
        if way == 0 or len(text) > 100:
            text = text[: int(rng.integers(1, len(text)))]
        elif way == 1:
            text = words(pairs[0], int(rng.integers(1, 8)), turn)
        text = text + words(pairs[0], int(rng.integers(0, 3)), turn)
    warm.close()


def test_a_draft_model_that_was_restarted_reads_the_next_text_whole() -> None:
    pair = toys("native")
    session = Session(pair)
    write(session, [0, 1, 2, 3] * 5, Settings(sampling=PLAIN, seed=1))
    (drafter,) = session.drafters(Settings())
    drafter.restart(16)
    result = write(session, [0, 1, 2, 3] * 5, Settings(sampling=PLAIN, seed=1))
    with Session(toys("native")) as fresh:
        expected = write(fresh, [0, 1, 2, 3] * 5, Settings(sampling=PLAIN, seed=1))
    assert (result.tokens, result.alpha) == (expected.tokens, expected.alpha)
    assert pair.drafter is not None
    assert pair.drafter.n_past > 20  # not only what follows the restart


def test_a_lookup_forgets_a_text_that_is_not_continued() -> None:
    chosen = Settings(sampling=SamplingParams(temperature=0), draft=("lookup",), gamma=4)
    first, second = [0, 1, 2, 3] * 6, [3, 2, 1, 0] * 8
    warm, fresh = Session(toys("native")), Session(toys("native"))
    write(warm, first, chosen)
    one, other = write(warm, second, chosen), write(fresh, second, chosen)
    assert (one.tokens, one.tally.proposed) == (other.tokens, other.tally.proposed)


def test_a_draft_model_is_emptied_of_what_an_earlier_session_left() -> None:
    pair, text = toys("native"), [0, 1, 2, 3, 0, 1, 2]
    with Session(pair) as earlier:
        write(earlier, [3, 3, 3, 3, 3, 3, 3], Settings(sampling=PLAIN, seed=1))
    session = Session(pair)
    write(session, text, Settings(sampling=PLAIN, seed=2, draft=("lookup",)))
    write(session, text, Settings(sampling=PLAIN, seed=3, draft=("model",)))
    assert isinstance(pair.drafter, Toy)
    assert pair.drafter._past[: len(text)] == text


def test_each_text_is_drafted_under_its_own_settings() -> None:
    session = Session(toys("native"))
    for sampling, most in ((PLAIN, 4), (SamplingParams(temperature=0), 1), (PLAIN, 4)):
        stop = Stop(session.pair.verifier.tokenizer, 20)
        rounds = list(session.rounds([0], Settings(sampling=sampling, gamma=3), stop))
        drafts = [row for done in rounds for row in done.draft.distributions]
        assert max(len(row.probs) for row in drafts) == most


def test_only_a_drawn_seed_lets_costs_be_learned_from_the_clock() -> None:
    session = Session(toys("native"), defaults=Settings(sampling=PLAIN, gamma="auto"))
    seen: list[Schedule] = []
    watched = Watched(seen)
    session.generate([0], max_tokens=5, seed=1, observers=[watched])
    session.generate([0], max_tokens=5, observers=[watched])
    assert [each.costs.live for each in seen if each.costs is not None] == [False, True]


class Watched(Observer):
    """Notes the schedule of each text."""

    def __init__(self, seen: list[Schedule]) -> None:
        self.seen = seen

    def begin(self, generation: Generation) -> None:
        assert generation.schedule is not None
        self.seen.append(generation.schedule)


def test_what_auto_learned_stays_for_texts_without_a_seed() -> None:
    session, seen = Session(toys("native")), list[Schedule]()
    for live in (True, False, True, False):
        chosen = Settings(sampling=PLAIN, gamma="auto", seed=1)
        write(session, [0], chosen, n=10, live=live, observers=[Watched(seen)])
    first, seeded, second, again = seen
    assert first is second
    assert len({id(first), id(seeded), id(again)}) == 3


def test_a_text_with_a_given_seed_does_not_depend_on_the_texts_before_it() -> None:
    """Costs under which much depends on the acceptance that was learned."""
    profile = Profile(verifier=curve([1, 1.3, 1.6, 1.9, 2.2, 2.5]), drafter=curve([0.1]))

    def opened() -> Session:
        costs = Costs(profile, "profile", live=False)
        return Session(toys("native"), costs=costs, defaults=Settings(sampling=PLAIN, gamma="auto"))

    session, texts = opened(), set[tuple[int, ...]]()
    for seed in (0, 1, 2, 0):
        alone = opened().generate([0], max_tokens=80, seed=seed)
        found = session.generate([0], max_tokens=80, seed=seed)
        assert (found.tokens, found.tally.lengths) == (alone.tokens, alone.tally.lengths)
        session.generate([0], max_tokens=200)
        texts.add(tuple(found.tokens))
    assert len(texts) == 3


def never_pays() -> Costs:
    """A pass of two tokens costs two passes."""
    profile = Profile(verifier=curve([1, 2, 3, 4, 5, 6]), drafter=curve([0.5]))
    return Costs(profile, "profile", live=False)


def test_a_drafter_that_does_not_draft_does_not_read_the_prompt() -> None:
    pair = toys("native")
    assert pair.drafter is not None
    session, tokens = Session(pair, costs=never_pays()), [0, 1, 2, 3] * 5
    auto = Settings(sampling=PLAIN, gamma="auto", seed=1)
    plain = write(session, tokens, auto)
    assert (pair.drafter.n_past, plain.prefill_draft_s) == (0, 0)
    assert plain.prefill_s > 0
    # It reads the whole of the next text when it is to draft, and drafts as from a fresh start.
    again, fixed = [*tokens, *plain.tokens, 1], Settings(sampling=PLAIN, gamma=3, seed=2)
    late, fresh = write(session, again, fixed), write(Session(toys("native")), again, fixed)
    assert (late.tokens, late.tally.lengths) == (fresh.tokens, fresh.tally.lengths)
    assert late.prefill_draft_s == fresh.prefill_draft_s


class Late:
    """Drafts in its third round for the first time."""

    costs = None

    def __init__(self, inner: Schedule) -> None:
        self.inner, self.rounds = inner, 0

    def begin(self) -> None:
        self.rounds = 0

    def plan(self, tokens: Sequence[int], drafters: Sequence[Drafter], room: int) -> Decision:
        self.rounds += 1
        outlook = drafters[0].outlook(tokens)
        if self.rounds < 3:
            return Decision(drafters[0], 0, "late")
        if self.rounds == 3:  # two plain tokens, and nothing of the prompt
            assert (outlook.lag, outlook.unread) == (2, drafters[0].n_past or 19)
        return self.inner.plan(tokens, drafters, room)

    def go_on(self, k: int, logits: Any) -> bool:
        return True

    def learn(self, outcome: Outcome) -> None: ...


class Steps(Observer):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def fed(self, n_tokens: int) -> None:
        self.seen.append(f"fed {n_tokens}")

    def prefilled(self) -> None:
        self.seen.append("prefilled")

    def round(self, done: Round) -> None:
        self.seen.append(f"round {len(done.draft.ids)}")


def test_a_prompt_read_late_is_counted_as_prefill_and_shown() -> None:
    pair, steps, chosen = toys("native"), Steps(), Settings(sampling=PLAIN, gamma=3, seed=1)
    tokens = [0, 1, 2, 3] * 5
    late = write(Session(pair), tokens, chosen, schedule=Late, observers=[steps], size=10)
    assert steps.seen[:8] == [
        *("fed 10", "fed 19", "prefilled", "round 0", "round 0", "fed 10", "fed 19", "round 3")
    ]
    early = write(Session(toys("native")), tokens, chosen, size=10)
    assert late.prefill_draft_s == early.prefill_draft_s
    assert late.prefill_draft_s
    # What the rounds took, to the clock's last digit: the reading is not in it.
    parts = late.tally.times
    assert late.tally.total == pytest.approx(
        parts.draft + parts.verify + parts.core + parts.rollback, abs=1e-9
    )


def test_ctrl_c_while_a_prompt_is_read_late_leaves_the_session_sound() -> None:
    class Struck(Observer):
        late = False

        def round(self, done: Round) -> None:
            self.late = True

        def fed(self, n_tokens: int) -> None:
            if self.late:
                raise KeyboardInterrupt

    session, tokens = Session(toys("native")), [0, 1, 2, 3] * 5
    chosen = Settings(sampling=PLAIN, gamma=3, seed=1)
    with pytest.raises(KeyboardInterrupt):
        write(session, tokens, chosen, schedule=Late, observers=[Struck()], size=10)
    assert session.pair.drafter is not None
    assert session.pair.drafter.n_past == 10
    fresh = write(Session(toys("native")), tokens, chosen)
    assert write(session, tokens, chosen).tokens == fresh.tokens


def test_a_restart_by_an_earlier_text_does_not_shorten_what_a_seeded_one_is_drafted_from() -> None:
    pair, tokens = toys("native"), [0, 1, 2, 3] * 5
    session = Session(pair)
    write(session, tokens, Settings(sampling=PLAIN, seed=1))
    (drafter,) = session.drafters(Settings())
    drafter.restart(8)
    assert pair.drafter is not None
    pair.drafter.forward(tokens[8:-1], 0)
    for live, n_past in ((True, 12), (False, 20)):
        write(session, tokens, Settings(sampling=PLAIN, seed=1), n=2, live=live)
        assert pair.drafter.n_past == n_past


def test_the_callers_time_is_not_the_generations() -> None:
    session, seconds = Session(toys("native")), []
    for pause in (0.0, 100.0):
        stop = Stop(session.pair.verifier.tokenizer, 12)
        rounds = session.rounds([0], Settings(sampling=PLAIN, gamma=2), stop)
        for _ in rounds:
            CLOCK.advance(pause)
        seconds.append(rounds.result.tally.total)
    assert 0 < seconds[0] == pytest.approx(seconds[1])


def test_an_observers_time_is_counted_and_told() -> None:
    class Slow(Observer):
        def round(self, done: Round) -> None:
            CLOCK.advance(100)

    session = Session(toys("native"))
    result = write(session, [0], Settings(sampling=PLAIN), observers=[Slow()])
    assert result.observed_s == pytest.approx(100 * result.rounds)
    assert result.tally.total > result.observed_s


def test_a_schedule_is_told_where_each_text_begins() -> None:
    begun: list[int] = []

    class Noting(Fixed):
        def begin(self) -> None:
            begun.append(1)

    session = Session(toys("native"))
    for _ in range(3):
        write(session, [0], Settings(sampling=PLAIN), schedule=lambda chosen: Noting(2))
    assert len(begun) == 3


# A generation that is left


class Failing(Observer):
    """Raises `error` when `phase` is reached."""

    def __init__(self, phase: str, error: BaseException) -> None:
        self.phase, self.error, self.ended = phase, error, 0

    def _reach(self, phase: str) -> None:
        if phase == self.phase:
            raise self.error

    def begin(self, generation: Generation) -> None:
        self._reach("begin")

    def fed(self, n_tokens: int) -> None:
        self._reach("fed")

    def prefilled(self) -> None:
        self._reach("prefilled")

    def round(self, done: Round) -> None:
        self._reach("round")

    def end(self, result: Result) -> None:
        self.ended += 1
        self._reach("end")


@pytest.mark.parametrize("phase", ["begin", "fed", "prefilled", "round", "end"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), BackendError("it failed"), OSError("pipe")])
def test_an_error_in_any_phase_leaves_the_session_right(
    pairs: tuple[Pair, Pair], phase: str, error: BaseException
) -> None:
    failing, other = Failing(phase, error), Failing("never", error)
    with Session(pairs[0]) as warm, Session(pairs[1]) as fresh:
        write(warm, words(pairs[0], 5, 1), settings(pairs[0], 1), size=1)
        with pytest.raises(type(error)):
            write(warm, words(pairs[0], 5), settings(pairs[0], 2), observers=[other, failing])
        assert (other.ended, failing.ended) == (1, phase != "begin")
        tokens = [*words(pairs[0], 5), *words(pairs[0], 2, 3)]
        chosen = Settings(sampling=PLAIN, seed=3, gamma=0)
        texts = [write(session, tokens, chosen, size=1).tokens for session in (warm, fresh)]
        assert texts[0] == texts[1]


class Interrupted(Toy):
    """Ctrl-C strikes within a call, after the tokens were taken in, or before any are forgotten."""

    strikes = truncate_strikes = 0

    def truncate(self, n_past: int) -> None:
        if n_past < self.n_past:
            self.truncate_strikes -= 1
            if self.truncate_strikes == 0:
                raise KeyboardInterrupt
        super().truncate(n_past)

    def forward(self, tokens: Sequence[int], n_logits: int = 1) -> Any:
        rows = super().forward(tokens, n_logits)
        self.strikes -= 1
        if self.strikes == 0:
            raise KeyboardInterrupt
        return rows


@pytest.mark.parametrize("strike", range(1, 12))
@pytest.mark.parametrize("side", ["verifier", "drafter"])
def test_ctrl_c_within_a_pass_leaves_the_session_right(strike: int, side: str) -> None:
    pair = Pair(Interrupted(table(1)), Interrupted(table(2)))
    getattr(pair, side).strikes = strike
    session, chosen = Session(pair), Settings(sampling=PLAIN, seed=3, gamma=3)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - in one of them
        for _ in range(4):
            write(session, [0, 1, 2, 3], chosen)
    tokens = [0, 1, 2, 3, 1, 1]
    expected = write(Session(toys("native")), tokens, chosen)
    found = write(session, tokens, chosen)
    assert (found.tokens, found.alpha) == (expected.tokens, expected.alpha)


@pytest.mark.parametrize("strike", range(1, 6))
@pytest.mark.parametrize("side", ["verifier", "drafter"])
def test_ctrl_c_before_rejected_tokens_are_forgotten(strike: int, side: str) -> None:
    """The text has grown by then, and the caches hold other tokens in those places."""
    pair = Pair(Interrupted(table(1)), Interrupted(table(2)))
    getattr(pair, side).truncate_strikes = strike
    session, chosen = Session(pair), Settings(sampling=PLAIN, seed=3, gamma=3)
    stop = Stop(pair.verifier.tokenizer, 40, ignore_eos=True)
    rounds = session.rounds([0, 1, 2, 3], chosen, stop)
    with pytest.raises(KeyboardInterrupt):
        list(rounds)
    tokens = [*rounds.generation.tokens, 1]
    expected, found = write(Session(toys("native")), tokens, chosen), write(session, tokens, chosen)
    assert (found.tokens, found.tally.lengths) == (expected.tokens, expected.tally.lengths)


def test_every_observer_sees_the_end_also_after_one_that_fails_there() -> None:
    failing, other = Failing("end", OSError("full")), Failing("never", OSError())
    with pytest.raises(OSError, match="full"):
        write(Session(toys("native")), [0], Settings(), observers=[failing, other])
    assert other.ended == 1


def test_a_generation_ends_once() -> None:
    session, seen = Session(toys("native")), Failing("never", OSError())
    stop = Stop(session.pair.verifier.tokenizer, 50)
    rounds = session.rounds([0], Settings(sampling=PLAIN), stop, [seen])
    next(rounds)
    rounds.generation.finish("failed")  # as when the runtime is about to end the process
    rounds.close()
    assert (seen.ended, rounds.result.stop_reason) == (1, "failed")


def test_a_generation_that_was_left_says_so() -> None:
    session = Session(toys("native"))
    seen = Failing("never", OSError())
    stop = Stop(session.pair.verifier.tokenizer, 50)
    for _ in session.rounds([0], Settings(sampling=PLAIN), stop, [seen]):
        break
    assert (stop.reason, seen.ended) == ("interrupted", 1)


# One at a time


@pytest.fixture
def pair() -> Pair:
    return Pair(Toy(TABLE), Toy(TABLE))


def begin(session: Session, n: int = 8) -> Any:
    stop = Stop(session.pair.verifier.tokenizer, n)
    return session.rounds([0], Settings(gamma=2), stop)


@pytest.mark.parametrize("wrap", [lambda model: model, Uncached])
def test_two_sessions_on_one_model_are_refused(pair: Pair, wrap: Callable[[Toy], Any]) -> None:
    first = Session(pair)
    with pytest.raises(BackendError, match=IN_USE):
        Session(Pair(wrap(pair.verifier)))  # type: ignore[arg-type]
    first.close()
    assert isinstance(next(begin(Session(Pair(wrap(pair.verifier))))), Round)  # type: ignore[arg-type]


def test_a_session_that_was_refused_holds_no_model(pair: Pair) -> None:
    other = Toy(TABLE)
    first = Session(pair)
    with pytest.raises(BackendError, match=IN_USE):
        Session(Pair(other, pair.drafter))
    gc.collect()
    assert isinstance(next(begin(Session(Pair(other)))), Round)
    first.close()


def test_a_forgotten_session_holds_nothing(pair: Pair) -> None:
    for _ in begin(Session(pair)):
        break
    gc.collect()
    assert isinstance(next(begin(Session(pair))), Round)


def test_a_later_generation_ends_the_earlier_one(pair: Pair) -> None:
    session = Session(pair)
    first = begin(session)
    next(first)
    assert len(list(begin(session))) > 0
    assert next(first, None) is None
    assert first.result.stop_reason == "interrupted"


def test_a_generation_within_another_is_refused(pair: Pair) -> None:
    session = Session(pair)

    class Nested(Observer):
        def round(self, done: Round) -> None:
            next(begin(session))

    stop = Stop(pair.verifier.tokenizer, 8)
    with pytest.raises(BackendError, match="is generating for another thread or caller"):
        next(session.rounds([0], Settings(gamma=2), stop, [Nested()]))


def test_of_threads_one_gets_the_session_and_the_others_are_told(pair: Pair) -> None:
    session, inside, done = Session(pair), threading.Event(), threading.Event()
    told: list[str] = []

    class Slow(Observer):
        def round(self, _: Round) -> None:
            inside.set()
            assert done.wait(30)

    def first() -> None:
        stop = Stop(pair.verifier.tokenizer, 8)
        for _ in session.rounds([0], Settings(gamma=2), stop, [Slow()]):
            pass

    def later() -> None:
        try:
            next(begin(session))
        except BackendError as error:
            told.append(str(error))

    threads = [threading.Thread(target=first), *(threading.Thread(target=later) for _ in range(3))]
    threads[0].start()
    assert inside.wait(30)
    for thread in threads[1:]:
        thread.start()
    for thread in threads[1:]:
        thread.join(30)
    done.set()
    threads[0].join(30)
    assert len(told) == 3
    assert all("is generating for another thread" in text for text in told)


def test_a_closed_session_is_refused(pair: Pair) -> None:
    with Session(pair) as session:
        pass
    with pytest.raises(BackendError, match="the session was closed"):
        session.generate([0])


def test_one_model_cannot_be_both_verifier_and_drafter() -> None:
    model = Toy(TABLE)
    for drafter in (model, Uncached(model)):
        with pytest.raises(UsageError, match="toy:table is both verifier and drafter"):
            Pair(model, drafter)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([], "tokens is empty"),
        ([0, 3], r"tokens\[1\] is 3; .*0 to 2"),
        ([0, -1], r"tokens\[1\] is -1"),
        ([0, 1.0], r"tokens\[1\] is 1.0"),
        (["a"], r"tokens\[0\] is 'a'"),
        ([True], r"tokens\[0\] is True"),
    ],
)
def test_tokens_of_another_kind_are_refused_by_name(tokens: Any, words: str, pair: Pair) -> None:
    with pytest.raises(UsageError, match=words):
        Session(pair).rounds(tokens, Settings(), Stop(pair.verifier.tokenizer, 1))


def test_a_generation_is_not_closed_within_a_round(pair: Pair) -> None:
    session = Session(pair)

    class Closing(Observer):
        def round(self, done: Round) -> None:
            rounds.close()

    stop = Stop(pair.verifier.tokenizer, 8)
    rounds = session.rounds([0], Settings(gamma=2), stop, [Closing()])
    with pytest.raises(BackendError, match="is computing a round"):
        next(rounds)
    assert rounds.result.stop_reason == "failed"
