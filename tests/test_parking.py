"""Clients of one session take turns: each reads only its last turn, as if it were alone."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import numpy as np
import pytest
from test_session import PLAIN, Failing, Interrupted, demo, fresh_logits, table, toys, write

from specx import LoadOptions, Pair, SamplingParams, Session, Settings, Stop, get_backend
from specx.core.exactness import Law
from specx.drafters.model import ModelDrafter
from specx.errors import BackendError, UsageError
from specx.runtime.backend import Parkable, ParkedState
from specx.runtime.uncached import Uncached
from specx.session.parking import PARK_LEAST, VERIFIER, ParkedText, Parking
from specx.verify.chisquare import ChiSquare, chi_square
from specx_backends.toy import TOKEN_BYTES, Toy

ROOM = 2**30
KINDS = ["native", "checkpoint", "none", "llamacpp", "hf", "mamba"]


@pytest.fixture(scope="module", params=KINDS)
def pairs(
    request: pytest.FixtureRequest,
    demo_verifier: Path,
    demo_drafter: Path,
    tiny_folders: Callable[[str], Path],
) -> Iterator[tuple[Pair, Pair]]:
    """Two equal pairs: for the session under test, and for fresh runs."""
    kind = request.param
    if kind in ("hf", "mamba"):
        pytest.importorskip("torch")

    def made() -> Pair:
        if kind == "llamacpp":
            return demo(kind, demo_verifier, demo_drafter)
        if kind == "hf":
            load, options = get_backend("hf").load, LoadOptions(dtype="float32")
            folder = str(tiny_folders("llama"))
            return Pair(load(folder, options), load(folder, options))
        if kind == "mamba":
            options = LoadOptions(n_ctx=512, dtype="float32")
            return Pair(get_backend("hf").load(str(tiny_folders("mamba")), options))
        return toys(kind)

    two = made(), made()
    yield two
    for pair in two:
        pair.close()


def text_of(pair: Pair, n: int, seed: int) -> list[int]:
    """Tokens of a client's own: no two clients begin with the same."""
    most = min(pair.verifier.n_vocab, 300)
    rest: list[int] = np.random.default_rng(seed).integers(most // 2, most, n - 1).tolist()
    return [seed % most, *rest]


def tolerance_of(pair: Pair) -> float:
    return 0.0 if pair.verifier.name.startswith("toy:") else 2e-2


def size_of_copy(model: Any, text: Sequence[int]) -> int:
    model.truncate(0)
    model.forward(text, 0)
    size: int = model.export_state().n_bytes
    return size


@pytest.mark.parametrize("n_clients", [2, 3])
def test_each_turn_reads_only_what_is_new(
    pairs: tuple[Pair, Pair], n_clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, other = pairs
    verifier, tolerance = pair.verifier, tolerance_of(pair)
    read = [] if pair.drafter is None else prompts_read(pair.drafter, monkeypatch)
    texts = [text_of(pair, 24, client) for client in range(n_clients)]
    with Session(pair, parking=Parking(ROOM)) as session:
        for turn in range(10):
            for client, text in enumerate(texts):
                known = len(text) if turn else 0
                text += text_of(pair, 3, turn)
                gamma = 3 if pair.drafter else 0
                settings = Settings(sampling=PLAIN, gamma=gamma, seed=turn)
                result = write(session, text, settings, n=6)
                text += result.tokens
                assert result.n_reused == known
                row = verifier.forward(text[verifier.n_past :])
                expected = fresh_logits(other.verifier, text)
                assert np.allclose(row, expected, atol=tolerance, rtol=0), (turn, client)
    if pair.drafter is not None:
        assert max(read[n_clients:]) <= 3 + 2  # as the last rounds may have passed without it


def prompts_read(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled with how many tokens `model` reads of each prompt."""
    read: list[int] = []
    forward = model.forward

    def counted(tokens: Sequence[int], n_logits: int = 1) -> Any:
        if not n_logits:
            read.append(len(tokens))
        return forward(tokens, n_logits)

    monkeypatch.setattr(model, "forward", counted)
    return read


def test_without_parking_all_is_read_again() -> None:
    session = Session(toys("native"))
    for _ in range(3):
        for client in range(2):
            text = text_of(session.pair, 30, client)
            assert write(session, text, Settings(sampling=PLAIN, seed=1)).n_reused == 0


@pytest.mark.parametrize("seed", range(3))
def test_turns_at_random_end_as_fresh_sessions_would(pairs: tuple[Pair, Pair], seed: int) -> None:
    """Texts that go on, go back, branch off or are broken off, in a budget that holds some."""
    rng, (pair, other) = np.random.default_rng(seed), pairs
    verifier, tolerance = pair.verifier, tolerance_of(pair)
    texts = [text_of(pair, 30, client) for client in range(4)]
    parking = Parking(5 * sum(size_of_copy(model, texts[0]) for model in pair.models))
    session = Session(pair, parking=parking)
    for turn in range(30):
        client = int(rng.integers(0, 4))
        text = texts[client]
        way = rng.integers(0, 4)
        if way == 0 or len(text) > 80:
            text = text[: int(rng.integers(20, 40))]
        elif way == 1:
            text = texts[int(rng.integers(0, 4))][:25]
        text = text + text_of(pair, int(rng.integers(1, 6)), turn)
        gamma = int(rng.integers(0, 5)) if pair.drafter else 0
        stop = Stop(verifier.tokenizer, int(rng.integers(1, 14)), ignore_eos=True)
        rounds = session.rounds(text, Settings(sampling=PLAIN, gamma=gamma, seed=turn), stop)
        for _ in range(int(rng.integers(1, 8))):
            next(rounds, None)
        rounds.close()
        texts[client] = text = text + rounds.result.tokens
        assert parking.n_bytes <= parking.most_bytes
        row = verifier.forward(text[verifier.n_past :])
        expected = fresh_logits(other.verifier, text)
        assert np.allclose(row, expected, atol=tolerance, rtol=0), turn
    assert parking.n_hits > 0
    session.close()
    assert parking.n_texts == 0


def test_a_text_that_branches_off_reads_only_its_own_part() -> None:
    """A long system prompt of several clients, and another client in between."""
    session = Session(toys("native"), parking=Parking(ROOM))
    system = text_of(session.pair, 40, 1)
    chosen = Settings(sampling=PLAIN, seed=1)
    write(session, [*system, 0, 0, 1], chosen)
    for ending in ([1, 1], [2, 0], [3, 3]):
        write(session, text_of(session.pair, 40, 2), chosen)
        result = write(session, [*system, *ending], chosen)
        assert result.n_reused == 40
        fresh = write(Session(toys("native")), [*system, *ending], chosen)
        assert (result.tokens, result.alpha) == (fresh.tokens, fresh.alpha)


@pytest.mark.parametrize(("lost", "n_texts"), [(PARK_LEAST, 0), (PARK_LEAST + 1, 1)])
def test_what_is_soon_read_again_is_not_parked(lost: int, n_texts: int) -> None:
    session = Session(Pair(Toy(table(1))), parking=Parking(ROOM))
    text = text_of(session.pair, 40, 1)
    write(session, text, Settings(sampling=PLAIN), n=1)  # the cache holds all 40
    assert session.pair.verifier.n_past == 40
    kept = text[: 40 - lost]
    write(session, [*kept, (text[len(kept)] + 1) % 4], Settings(sampling=PLAIN))
    assert session.parking is not None
    assert session.parking.n_texts == n_texts


def test_a_client_that_goes_on_parks_nothing() -> None:
    parking = Parking(ROOM)
    session, text = Session(toys("native"), parking=parking), [1] * 30
    for turn in range(5):
        text += write(session, text, Settings(sampling=PLAIN, seed=turn)).tokens
    assert (parking.n_texts, parking.n_hits) == (0, 0)


# What cannot be parked


class NoMemory(Toy):
    """Copies out or in fail from the first to the last."""

    def __init__(self, *args: Any, fails: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.fails = fails

    def export_state(self) -> ParkedState:
        if self.fails == "export":
            raise BackendError("no memory for a copy")
        return super().export_state()

    def import_state(self, state: ParkedState) -> None:
        if self.fails == "import":
            self.truncate(0)
            raise BackendError("no memory")
        super().import_state(state)


MAKERS: dict[str, Callable[[int], Any]] = {
    "parkable": lambda seed: Toy(table(seed)),
    "uncached": lambda seed: Uncached(Toy(table(seed))),
    "no export": lambda seed: NoMemory(table(seed), fails="export"),
    "no import": lambda seed: NoMemory(table(seed), fails="import"),
}


@pytest.mark.parametrize("drafter", MAKERS)
@pytest.mark.parametrize("verifier", MAKERS)
def test_what_cannot_be_parked_is_read_again(verifier: str, drafter: str) -> None:
    pair = Pair(MAKERS[verifier](1), MAKERS[drafter](2))
    parking = Parking(ROOM)
    session = Session(pair, parking=parking)
    texts = [text_of(pair, 30, client) for client in range(2)]
    for turn in range(3):
        for text in texts:
            known, chosen = len(text) - 1 if turn else 0, Settings(sampling=PLAIN, seed=turn)
            fresh = write(Session(toys("native")), text, chosen)
            result = write(session, text, chosen)
            assert (result.tokens, result.alpha) == (fresh.tokens, fresh.alpha)
            assert result.n_reused == (known if verifier == "parkable" else 0)
            text += result.tokens
    if verifier in ("uncached", "no export"):
        assert parking.n_texts == 0


def test_only_what_has_a_cache_is_parkable() -> None:
    toy = Toy(table(1))
    (lookup,) = Session(Pair(Toy(table(1)))).drafters(Settings(draft=("lookup",)))
    assert isinstance(toy, Parkable)
    assert not isinstance(Uncached(toy), Parkable)
    assert not isinstance(lookup, Parkable)


def test_a_drafters_copy_says_where_in_the_text_it_begins() -> None:
    pair = toys("native")
    session = Session(pair)
    (drafter,) = session.drafters(Settings())
    assert isinstance(drafter, ModelDrafter)
    assert pair.drafter is not None
    drafter.restart(8)
    pair.drafter.forward([1, 2, 3], 0)
    state = drafter.export_state()
    drafter.restart(0)
    pair.drafter.forward([0, 0], 0)
    drafter.import_state(state)
    assert (state.n_past, drafter.n_past, pair.drafter.n_past) == (11, 11, 3)
    with pytest.raises(BackendError, match="exported, loaded apart, cannot be imported"):
        drafter.import_state(pair.verifier.export_state())  # type: ignore[attr-defined]
    assert drafter.n_past == 11


# The budget


def parked(tokens: Sequence[int], size: int) -> ParkedText:
    state = ParkedState(n_past=len(tokens), n_bytes=size, maker=Toy(table(1)), data=None)
    return ParkedText(tokens, {VERIFIER: state})


def test_the_least_recently_used_go_first() -> None:
    parking = Parking(30)
    one, two, three, four = (parked([i] * 5, 10) for i in range(4))
    for each in (one, two, three):
        parking.add(each)
    assert (parking.n_texts, parking.n_bytes, parking.n_dropped) == (3, 30, 0)
    assert parking.take([0, 0, 0, 7], 2, whole=False) == (one, 3)
    parking.add(four)
    assert parking._texts == (three, one, four)
    assert (parking.n_bytes, parking.n_hits, parking.n_dropped) == (30, 1, 1)
    parking.add(parked([9] * 5, 25))
    assert (parking.n_texts, parking.n_bytes, parking.n_dropped) == (1, 25, 4)


def test_what_is_larger_than_the_budget_is_not_parked_and_drops_nothing() -> None:
    parking = Parking(30)
    parking.add(parked([1] * 5, 30))
    parking.add(parked([1] * 9, 31))
    assert [len(text.tokens) for text in parking._texts] == [5]


def test_a_longer_copy_takes_the_place_of_those_it_continues() -> None:
    parking = Parking(100)
    for tokens in ([1, 2], [1, 3], [1, 2, 3], [1, 2, 3, 4]):
        parking.add(parked(tokens, 10))
    assert [text.tokens for text in parking._texts] == [[1, 3], [1, 2, 3, 4]]
    assert parking.n_dropped == 0


def test_the_longest_shared_prefix_is_found() -> None:
    parking = Parking(100)
    first, second, again = parked([1, 2, 3, 4], 10), parked([1, 2], 10), parked([1, 2, 9], 10)
    for each in (first, again, second):
        parking.add(each)
    assert parking.take([1, 2, 3, 9], 3, whole=False) == (None, 3)
    assert parking.take([1, 2, 3, 9], 2, whole=False) == (first, 3)
    assert parking.take([1, 2, 8], 0, whole=False) == (first, 2)  # used last
    assert parking.n_texts == 3
    assert parking.take([1, 2, 3, 9], 0, whole=True) == (second, 2)
    assert parking.n_texts == 2  # what is continued whole leaves
    assert parking.take([1, 2, 3, 9], 0, whole=True) == (None, 0)
    assert parking.take([7], 0, whole=False) == (None, 0)
    assert (parking.n_hits, parking.n_dropped) == (3, 0)
    parking.remove(first)
    assert parking.take([1, 2, 8], 0, whole=False) == (again, 2)


@pytest.mark.parametrize("most", [-1, 1.5, "1 GiB"])
def test_a_budget_is_a_number_of_bytes(most: Any) -> None:
    with pytest.raises(UsageError, match="most_bytes is"):
        Parking(most)


@pytest.mark.parametrize("n_kept", [0, 1, 3])
def test_no_more_is_parked_than_was_allowed(n_kept: int) -> None:
    """Four texts in turn, of 39 tokens without the last, which no drafter reads in vain."""
    parking = Parking(n_kept * 39 * TOKEN_BYTES)
    session = Session(toys("native"), parking=parking)
    texts = [text_of(session.pair, 40, client) for client in range(4)]
    for turn in range(8):
        result = write(session, texts[turn % 4], Settings(sampling=PLAIN, seed=turn), n=0)
        assert result.n_reused == (39 if turn >= 4 and n_kept == 3 else 0)
        assert parking.n_texts == min(turn, n_kept)
        assert parking.n_bytes <= parking.most_bytes
    assert parking.n_hits == (4 if n_kept == 3 else 0)


# After an error or an interrupt


def test_rejected_tokens_are_not_parked() -> None:
    """Ctrl-C before a round's rejected tokens are forgotten: the text has grown without them."""
    for strike in range(1, 6):
        pair = Pair(Interrupted(table(1)), Interrupted(table(2)))
        session, chosen = Session(pair, parking=Parking(ROOM)), Settings(sampling=PLAIN, seed=3)
        assert isinstance(pair.verifier, Interrupted)
        pair.verifier.truncate_strikes = strike
        stop = Stop(pair.verifier.tokenizer, 40, ignore_eos=True)
        rounds = session.rounds([0, 1, 2, 3] * 6, chosen, stop)
        with pytest.raises(KeyboardInterrupt):
            list(rounds)
        text = [*rounds.generation.tokens, 1]
        write(session, text_of(pair, 30, 2), chosen)
        found = write(session, text, chosen)
        assert found.n_reused >= 23
        expected = write(Session(toys("native")), text, chosen)
        assert (found.tokens, found.tally.lengths) == (expected.tokens, expected.tally.lengths)


FEEDING = {
    "_feed", "_recall", "_park", "_unpark", "_sides", "_return_to", "add", "take", "export_state",
    "import_state", "truncate", "restart", "feed", "_check_rollback",
}  # fmt: skip


class Strike:
    """Raises KeyboardInterrupt before the nth instruction of the functions above."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_name not in FEEDING:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


class Counting(Toy):
    """Counts its tokens apart from its cache, as a runtime's model: Ctrl-C may strike between."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.counted = 0
        super().__init__(*args, **more)

    @property
    def n_past(self) -> int:
        return self.counted

    def forward(self, tokens: Sequence[int], n_logits: int = 1) -> Any:
        self.counted += len(tokens)
        return super().forward(tokens, n_logits)

    def truncate(self, n_past: int) -> None:
        if n_past == 0:
            self.counted = 0
            self._past.clear()
        elif n_past < self.counted:
            if n_past > len(self._past):
                raise BackendError("the cache ends before")
            del self._past[n_past:]
            self.counted = n_past

    def import_state(self, state: ParkedState) -> None:
        self.counted = 0
        super().import_state(state)
        self.counted = state.n_past


PAIRS: dict[str, Callable[[], Pair]] = {
    "native": lambda: toys("native"),
    "checkpoint": lambda: toys("checkpoint"),
    "counting": lambda: Pair(Counting(table(1)), Counting(table(2))),
}


def alternating(pair: Pair) -> tuple[Session, list[list[int]]]:
    """Two texts that begin alike: the first is parked, the second in the caches."""
    session = Session(pair, parking=Parking(ROOM))
    texts = [[2] * 9 + text_of(session.pair, 24, client) for client in range(2)]
    for text in texts:
        text += write(session, text, Settings(sampling=PLAIN, seed=1), n=6).tokens
    return session, texts


@pytest.mark.parametrize("again", [0, 1])
@pytest.mark.parametrize("kind", PAIRS)
def test_ctrl_c_at_any_instruction_of_a_turn_leaves_the_next_right(kind: str, again: int) -> None:
    """It strikes the first client's second turn; then the first goes on, or the second."""
    chosen = Settings(sampling=PLAIN, seed=3)
    _, texts = alternating(PAIRS[kind]())
    prompt = [*texts[again], 1]
    expected = write(Session(PAIRS[kind]()), prompt, chosen, n=6)
    for nth in count(1 + again, 2):
        session, texts = alternating(PAIRS[kind]())
        sys.settrace(Strike(nth))
        try:
            write(session, [*texts[0], 1, 0], chosen, n=1)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        found = write(session, prompt, chosen, n=6)
        assert (found.tokens, found.tally.lengths) == (expected.tokens, expected.tally.lengths), nth
        for model in session.pair.models:
            assert isinstance(model, Toy)
            assert model._past == [*prompt, *found.tokens][: model.n_past], nth
    assert nth > 300


class Struck(Toy):
    """Its first import fails, Ctrl-C strikes after its second."""

    imports = 0

    def import_state(self, state: ParkedState) -> None:
        self.imports += 1
        if self.imports == 1:
            self.truncate(0)
            raise BackendError("no memory")
        super().import_state(state)
        if self.imports == 2:
            raise KeyboardInterrupt


def test_ctrl_c_after_an_import_that_follows_an_interrupted_reading() -> None:
    """What was held is then a prefix of the text, and shorter than what the copy shares with it."""
    session, chosen = (
        Session(Pair(Struck(table(1))), parking=Parking(ROOM)),
        Settings(sampling=PLAIN),
    )
    first = text_of(session.pair, 40, 1)
    branch, near = [*first[:20], *[0] * 14], [*first[:18], *[3] * 14]
    first[18:] = [1] * 22
    branch[18:20] = [1, 1]
    for text in (branch, near, text_of(session.pair, 40, 2)):
        write(session, text, chosen)
    with pytest.raises(KeyboardInterrupt):
        write(session, first, chosen, observers=[Failing("fed", KeyboardInterrupt())], size=4)
    assert session.pair.verifier.n_past == 4
    with pytest.raises(KeyboardInterrupt):
        write(session, first, chosen)
    assert session.pair.verifier.n_past > 18
    found, fresh = write(session, first, chosen), write(Session(Pair(Toy(table(1)))), first, chosen)
    assert (found.tokens, found.n_reused) == (fresh.tokens, 18)
    assert isinstance(session.pair.verifier, Toy)
    assert session.pair.verifier._past[:40] == first


# Exactness


def law_of(prompt: Sequence[int], n: int) -> Law:
    """The verifier's distribution of the next `n` tokens, from fresh caches."""
    law: Law = {(): 1.0}
    for _ in range(n):
        longer: Law = {}
        for text, mass in law.items():
            chances = np.exp(fresh_logits(Toy(table(1)), [*prompt, *text])[-1].astype(np.float64))
            for token, chance in enumerate((chances / chances.sum()).tolist()):
                longer.update({(*text, token): mass * chance})
        law = longer
    return law


def after_restores(verifier: Toy, n_texts: int = 1500) -> ChiSquare:
    """Texts of a client that always comes back after another, against their distribution."""
    session = Session(Pair(verifier, Toy(table(2))), parking=Parking(ROOM // 2**14))
    mine, others = [0] * 24 + [2, 1], [3] * 24 + [1, 1]
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(n_texts):
        chosen = Settings(sampling=SamplingParams(temperature=1, top_p=1), gamma=2, seed=seed)
        write(session, others, chosen, n=1)
        result = write(session, mine, chosen, n=3)
        assert result.n_reused == (len(mine) - 1 if seed else 0)
        seen[tuple(result.tokens)] += 1
    return chi_square(seen, law_of(mine, 3), 1e-6)


def test_texts_after_a_restore_have_the_verifiers_distribution() -> None:
    assert after_restores(Toy(table(1))).holds


class Confused(Toy):
    """Gets back what another conversation parked."""

    states: ClassVar[list[ParkedState]] = []

    def export_state(self) -> ParkedState:
        state = super().export_state()
        self.states.append(state)
        return state

    def import_state(self, state: ParkedState) -> None:
        others = [other for other in self.states if other.data[0] != state.data[0]]
        super().import_state(others[-1])
        self._past = self._past[: state.n_past]


def test_a_cache_of_another_conversation_is_refuted() -> None:
    assert not after_restores(Confused(table(1)), 300).holds
