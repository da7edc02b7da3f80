"""What every backend must do: one suite, run over each model in `CASES`.

After any forward and truncate, logits are those of a fresh run: a second instance of the same
model, emptied before each use (that emptied means new is a test of its own). They are so bit for
bit when both were fed in the same chunks. In other chunks they may differ by twice the model's
deviation, which is measured here: how far logits of tokens fed together lie from those of the same
tokens fed one by one. Twice, since each of two ways of feeding may lie that far from one by one.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from specx.errors import BackendError, ContextError, OptionError, UsageError
from specx.runtime.backend import (
    BackendFactory,
    LoadOptions,
    LogitsBackend,
    Parkable,
    Rollback,
    Tokenizer,
    reject_unsupported,
)
from specx_backends.rewinding import RewindingModel

Rows = NDArray[np.float32]

N_CTX = 128
AWKWARD = [
    "plain words, and 3.14",
    "tab\tand\n\nnewlines\r\n",
    "  two spaces  before and after  ",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467",  # emoji; a family, joined
    "\u0634\u0643\u0631\u0627 \u05e9\u05dc\u05d5\u05dd",  # right to left
    "cafe\u0301 \u65e5\u672c\u8a9e \ufffd",  # combining accent, Japanese, replacement character
    "<|im_end|> </s> <s>",  # control tokens as plain text
]
PROSE = (
    "The sun warms the sea, and the water rises as vapour. Cold air turns it into clouds; the rain "
    "falls on the hills and runs back by a thousand streams.\ndef area(width, height):\n    return "
    "width * height\n\nNothing is lost on the way: what the valley drinks, the mountain has given."
)
# A value for each option, to set what a backend does not honour.
SOME_VALUE: dict[str, Any] = {
    "n_batch": 32,
    "n_gpu_layers": 0,
    "threads": 1,
    "cache_type_k": "f16",
    "cache_type_v": "f16",
    "dtype": "float32",
    "device": "cpu",
    "offline": True,
    "weights_cache": ".",
}


@dataclass(frozen=True)
class Model:
    """A model to hold to the contract."""

    factory: BackendFactory
    path: str
    text: str
    """Some 50 tokens or more, such as the model was made for."""
    walks: int
    """How many random sequences of calls it is put through."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def open(self, **options: Any) -> LogitsBackend:
        given = {"n_ctx": N_CTX, **self.options, **options}
        return self.factory.load(self.path, LoadOptions(**given))


CASES = [
    # (name, fixture that gives its Model)
    ("toy-native", "toy_native"),
    ("toy-checkpoint", "toy_checkpoint"),
    ("toy-none", "toy_none"),
    ("llamacpp-smollm2", "llamacpp_smollm2"),
    ("llamacpp-demo-verifier", "llamacpp_demo_verifier"),
    ("llamacpp-demo-drafter", "llamacpp_demo_drafter"),
    ("llamacpp-qwen05", "llamacpp_qwen05"),
    ("hf-smollm2", "hf_smollm2"),
    ("hf-demo-verifier", "hf_demo_verifier"),
    ("hf-demo-drafter", "hf_demo_drafter"),
]


@pytest.fixture(scope="session")
def toy_native(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return toy(tmp_path_factory.mktemp("toy"), "native")


@pytest.fixture(scope="session")
def toy_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return toy(tmp_path_factory.mktemp("toy"), "checkpoint")


@pytest.fixture(scope="session")
def toy_none(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return toy(tmp_path_factory.mktemp("toy"), "none")


@pytest.fixture(scope="session")
def llamacpp_smollm2(smollm2: Path) -> Model:
    return on_cpu("llamacpp", smollm2)


@pytest.fixture(scope="session")
def llamacpp_demo_verifier(demo_verifier: Path) -> Model:
    return on_cpu("llamacpp", demo_verifier)


@pytest.fixture(scope="session")
def llamacpp_demo_drafter(demo_drafter: Path) -> Model:
    return on_cpu("llamacpp", demo_drafter)


@pytest.fixture(scope="session")
def llamacpp_qwen05(qwen05: Path) -> Model:
    return on_cpu("llamacpp", qwen05)


@pytest.fixture(scope="session")
def hf_smollm2(smollm2: Path, weights_cache: str) -> Model:
    return dequantised(smollm2, weights_cache)


@pytest.fixture(scope="session")
def hf_demo_verifier(demo_verifier: Path, weights_cache: str) -> Model:
    return dequantised(demo_verifier, weights_cache)


@pytest.fixture(scope="session")
def hf_demo_drafter(demo_drafter: Path, weights_cache: str) -> Model:
    return dequantised(demo_drafter, weights_cache)


def dequantised(path: Path, weights_cache: str) -> Model:
    # One thread: torch's wait for each other, which takes many times as long on a shared machine.
    options = {"device": "cpu", "threads": 1, "weights_cache": weights_cache}
    return Model(factory("hf"), str(path), PROSE, walks=3, options=options)


def on_cpu(name: str, path: Path) -> Model:
    return Model(factory(name), str(path), PROSE, walks=3, options={"n_gpu_layers": 0})


def factory(name: str) -> BackendFactory:
    return cast(BackendFactory, importlib.import_module(f"specx_backends.{name}").backend)


def toy(folder: Path, rollback: str) -> Model:
    """A table of order 2 over a, b and c, in which every context has probabilities of its own."""
    random = np.random.default_rng(1)
    characters = sorted({c for text in AWKWARD for c in text} - set("abc"))
    head = {
        "vocabulary": ["<s>", "</s>", "a", "b", "c", *characters],
        "bos": "<s>",
        "eog": ["</s>"],
        "padding": 3,
        "rollback": rollback,
    }
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    for after in ["", *"abc", *(x + y for x in "abc" for y in "abc")]:
        shares = dict(zip("abc", random.dirichlet(np.ones(3)).tolist(), strict=True))
        body = ", ".join(f"{token} = {share!r}" for token, share in shares.items())
        lines.append(f"[[row]]\nafter = {json.dumps(list(after))}\nnext = {{ {body} }}")
    path = folder / "table.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return Model(factory("toy"), str(path), "".join(random.choice(list("abc"), 60)), walks=100)


@pytest.fixture(scope="module", params=[fixture for _, fixture in CASES], ids=[n for n, _ in CASES])
def model(request: pytest.FixtureRequest) -> Model:
    return cast(Model, request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def oracle(model: Model) -> Iterator[LogitsBackend]:
    """A second instance, for fresh runs."""
    with model.open() as backend:
        yield backend


@pytest.fixture(scope="module")
def used(model: Model) -> Iterator[LogitsBackend]:
    with model.open() as backend:
        yield backend


@pytest.fixture
def subject(used: LogitsBackend) -> LogitsBackend:
    """What is tested: an instance that earlier tests may have used, emptied."""
    used.truncate(0)
    return used


@pytest.fixture(scope="module")
def tokens(model: Model, oracle: LogitsBackend) -> list[int]:
    ids = oracle.tokenizer.encode(model.text, add_special=False, parse_special=False)
    assert len(ids) >= 48
    return ids


@pytest.fixture(scope="module")
def allowed(oracle: LogitsBackend, tokens: list[int]) -> float:
    """How far logits may lie apart that were fed in different chunks."""
    measured = batch_deviation(oracle, tokens)
    print(f"{oracle.name}: together against one by one, logits differ by up to {measured:.3g}")
    return 2 * measured


def chunked(tokens: Sequence[int], width: int) -> list[Sequence[int]]:
    return [tokens[i : i + width] for i in range(0, len(tokens), width)]


def feed(backend: LogitsBackend, chunks: Sequence[Sequence[int]]) -> Rows:
    """Logits after every token of `chunks`."""
    return np.concatenate([backend.forward(chunk, len(chunk)) for chunk in chunks])


def fresh(oracle: LogitsBackend, chunks: Sequence[Sequence[int]]) -> Rows:
    """The same from an empty cache."""
    oracle.truncate(0)
    return feed(oracle, chunks)


def deviation(some: Rows, others: Rows) -> float:
    """The largest difference of two logits; -inf and -inf do not differ."""
    with np.errstate(invalid="ignore"):  # inf - inf, not used
        return float(np.where(some == others, 0, np.abs(some - others)).max(initial=0))


def batch_deviation(oracle: LogitsBackend, tokens: Sequence[int]) -> float:
    measured = 0.0
    for window in (tokens[:24], tokens[11:35], tokens[20:44]):
        alone = fresh(oracle, chunked(window, 1))
        together = [fresh(oracle, chunked(window, width)) for width in (3, 8, 24)]
        measured = max(measured, *(deviation(rows, alone) for rows in together))
    return measured


def check_whole_chunks(subject: LogitsBackend, oracle: LogitsBackend, tokens: list[int]) -> None:
    """A chunk that was fed and forgotten leaves no trace: bit for bit."""
    kept: list[Sequence[int]] = []
    for start in range(0, 36, 12):
        first, draft, then = chunked(tokens[start : start + 12], 4)
        subject.forward(first, len(first))
        subject.checkpoint()
        n_past = subject.n_past
        subject.forward(draft, len(draft))
        subject.truncate(n_past)
        rows = subject.forward(then, len(then))
        kept += [first, then]
        assert subject.n_past == sum(map(len, kept))
        np.testing.assert_array_equal(rows, fresh(oracle, kept)[-len(then) :])


def check_walk(
    subject: LogitsBackend, oracle: LogitsBackend, tokens: list[int], allowed: float, seed: int
) -> None:
    """Any sequence of calls, forgetting in mid-chunk too, leaves a fresh run's logits."""
    random = np.random.default_rng(seed)
    kept: list[int] = []
    start = 0 if subject.rollback == "native" else None  # where forgetting can go back to, beside 0
    for action in random.choice(["feed", "feed", "forget", "mark"], 14):
        if action == "feed":
            at, width = random.integers(len(tokens) - 8), random.integers(1, 9)
            kept += tokens[at : at + width]
            n_logits = int(random.integers(width + 1))
            rows = subject.forward(tokens[at : at + width], n_logits)
            assert rows.shape == (n_logits, subject.n_vocab)
            want = fresh(oracle, [kept])[len(kept) - n_logits :]
            assert deviation(rows, want) <= allowed
        elif action == "forget":
            goals = [0, len(kept), *range(len(kept) if start is None else start, len(kept))]
            del kept[int(random.choice(goals)) :]
            subject.truncate(len(kept))
            start = None if start is not None and start > len(kept) else start
        elif subject.rollback == "checkpoint":
            subject.checkpoint()
            start = len(kept)
        assert subject.n_past == len(kept)


def check_walks(
    subject: LogitsBackend, oracle: LogitsBackend, tokens: list[int], allowed: float, walks: int
) -> None:
    for seed in range(walks):
        subject.truncate(0)
        check_walk(subject, oracle, tokens, allowed, seed)


def needs_rollback(subject: LogitsBackend) -> None:
    if subject.rollback == "none":
        pytest.skip("this model cannot roll back")


# What forward returns


@pytest.mark.parametrize("n_logits", [0, 1, 3, 5])
def test_asked_for_rows_come_back(
    subject: LogitsBackend,
    oracle: LogitsBackend,
    tokens: list[int],
    allowed: float,
    n_logits: int,
) -> None:
    rows = subject.forward(tokens[:5], n_logits)
    assert rows.shape == (n_logits, subject.n_vocab)
    assert rows.dtype == np.float32
    assert subject.n_past == 5
    assert deviation(rows, fresh(oracle, [tokens[:5]])[5 - n_logits :]) <= allowed


def test_rows_differ_and_are_numbers(subject: LogitsBackend, tokens: list[int]) -> None:
    rows = subject.forward(tokens[:8], 8)
    assert not np.isnan(rows).any()
    assert len(np.unique(rows, axis=0)) > 2


@pytest.mark.parametrize("n_logits", [1, 3])
def test_rows_are_the_callers(subject: LogitsBackend, tokens: list[int], n_logits: int) -> None:
    rows = subject.forward(tokens[:3], n_logits)
    seen = rows.copy()
    subject.forward(tokens[3:6], n_logits)
    np.testing.assert_array_equal(rows, seen)
    rows[:] = 7
    subject.truncate(0)
    np.testing.assert_array_equal(subject.forward(tokens[:3], n_logits), seen)


def test_chunked_prefill_equals_whole(
    subject: LogitsBackend, oracle: LogitsBackend, tokens: list[int], allowed: float
) -> None:
    for chunk in chunked(tokens[:40], 7):
        assert subject.forward(chunk, 0).shape == (0, subject.n_vocab)
    rows = subject.forward(tokens[40:43], 3)
    assert subject.n_past == 43
    assert deviation(rows, fresh(oracle, [tokens[:43]])[40:]) <= allowed


def test_more_tokens_than_a_batch(
    model: Model, oracle: LogitsBackend, tokens: list[int], allowed: float
) -> None:
    if "n_batch" not in model.factory.options:
        pytest.skip("this backend has no batches")
    with model.open(n_batch=16) as subject:
        rows = subject.forward(tokens[:43], 30)
        assert subject.n_past == 43
        assert deviation(rows, fresh(oracle, [tokens[:43]])[13:]) <= allowed


def test_the_whole_context_can_be_used(subject: LogitsBackend, tokens: list[int]) -> None:
    many = tokens * (subject.n_ctx // len(tokens) + 1)
    subject.forward(many[: subject.n_ctx - 1], 0)
    assert subject.forward(many[:1]).shape == (1, subject.n_vocab)
    assert subject.n_past == subject.n_ctx
    with pytest.raises(ContextError):
        subject.forward(many[:1])
    assert subject.n_past == subject.n_ctx


# Forgetting


def test_forgotten_chunks_leave_no_trace(
    subject: LogitsBackend, oracle: LogitsBackend, tokens: list[int]
) -> None:
    needs_rollback(subject)
    check_whole_chunks(subject, oracle, tokens)


def test_random_calls_leave_a_fresh_runs_logits(
    model: Model, subject: LogitsBackend, oracle: LogitsBackend, tokens: list[int], allowed: float
) -> None:
    check_walks(subject, oracle, tokens, allowed, model.walks)


def test_emptied_equals_newly_loaded(model: Model, tokens: list[int]) -> None:
    chunks = chunked(tokens[:12], 4)
    with model.open() as subject:
        new = feed(subject, chunks)
        feed(subject, chunked(tokens[12:30], 6))
        subject.truncate(0)
        assert subject.n_past == 0
        np.testing.assert_array_equal(feed(subject, chunks), new)


def test_truncating_to_where_it_is_changes_nothing(
    subject: LogitsBackend, oracle: LogitsBackend, tokens: list[int]
) -> None:
    subject.truncate(0)
    subject.forward(tokens[:4], 4)
    subject.truncate(4)
    assert subject.n_past == 4
    rows = subject.forward(tokens[4:8], 4)
    np.testing.assert_array_equal(rows, fresh(oracle, chunked(tokens[:8], 4))[4:])


def test_what_cannot_be_rolled_back_is_refused(
    subject: LogitsBackend, oracle: LogitsBackend, tokens: list[int]
) -> None:
    if subject.rollback == "native":
        pytest.skip("this model can return to any position")
    subject.forward(tokens[:4], 4)
    if subject.rollback == "checkpoint":
        subject.checkpoint()
    else:
        with pytest.raises(BackendError):
            subject.checkpoint()
    with pytest.raises(BackendError):
        subject.truncate(3)
    assert subject.n_past == 4
    rows = subject.forward(tokens[4:8], 4)
    np.testing.assert_array_equal(rows, fresh(oracle, chunked(tokens[:8], 4))[4:])


class OneTooLong:
    """A backend that keeps one entry too many unless it is emptied; its `n_past` looks right."""

    def __init__(self, inner: LogitsBackend) -> None:
        self._inner = inner
        self._too_many = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def n_past(self) -> int:
        return self._inner.n_past - self._too_many

    def truncate(self, n_past: int) -> None:
        if 0 < n_past < self.n_past:
            self._too_many += 1
            self._inner.truncate(n_past + self._too_many)
        elif n_past == 0:
            self._too_many = 0
            self._inner.truncate(0)


def test_one_entry_too_many_is_caught(
    model: Model, subject: LogitsBackend, oracle: LogitsBackend, tokens: list[int], allowed: float
) -> None:
    needs_rollback(subject)
    faulty = cast(LogitsBackend, OneTooLong(subject))
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        check_whole_chunks(faulty, oracle, tokens)
    with pytest.raises(AssertionError, match="deviation"):
        check_walks(faulty, oracle, tokens, allowed, model.walks)


# Parking


def parkable(subject: LogitsBackend) -> Any:
    assert isinstance(subject, Parkable)
    return subject


def test_an_imported_state_gives_a_fresh_runs_logits(
    subject: LogitsBackend, oracle: LogitsBackend, tokens: list[int]
) -> None:
    """Bit for bit, each time that it is imported, whatever the model holds."""
    chunks = [tokens[:12], tokens[12:20], tokens[20:24]]
    feed(subject, chunks[:2])
    state = parkable(subject).export_state()
    assert (state.n_past, subject.n_past) == (20, 20)
    want = fresh(oracle, chunks)[20:]
    np.testing.assert_array_equal(subject.forward(chunks[2], 4), want)
    for held in (tokens[5:40], tokens[:3], []):
        subject.truncate(0)
        if held:
            subject.forward(held, 1)
        parkable(subject).import_state(state)
        assert subject.n_past == 20
        np.testing.assert_array_equal(subject.forward(chunks[2], 4), want)


def test_an_imported_state_can_be_rolled_back_and_continued(
    subject: LogitsBackend, oracle: LogitsBackend, tokens: list[int], allowed: float
) -> None:
    needs_rollback(subject)
    subject.forward(tokens[:20], 1)
    state = parkable(subject).export_state()
    subject.truncate(0)
    subject.forward(tokens[30:44], 1)
    parkable(subject).import_state(state)
    subject.forward(tokens[20:26], 1)
    for kept in (23, 20, 9):
        if subject.rollback == "checkpoint" and kept < 20:
            with pytest.raises(BackendError):
                subject.truncate(kept)
            break
        subject.truncate(kept)
        other = tokens[40:44]
        rows = subject.forward(other, 4)
        assert deviation(rows, fresh(oracle, [[*tokens[:kept], *other]])[kept:]) <= allowed
        subject.truncate(kept)


def test_an_empty_cache_can_be_parked_too(
    subject: LogitsBackend, oracle: LogitsBackend, tokens: list[int]
) -> None:
    state = parkable(subject).export_state()
    assert (state.n_past, state.n_bytes) == (0, 0)
    subject.forward(tokens[:9], 1)
    parkable(subject).import_state(state)
    assert subject.n_past == 0
    rows = subject.forward(tokens[:4], 4)
    np.testing.assert_array_equal(rows, fresh(oracle, [tokens[:4]]))


def test_a_state_says_what_it_takes(subject: LogitsBackend, tokens: list[int]) -> None:
    sizes = []
    for _ in range(3):
        subject.forward(tokens[:16], 0)
        sizes.append(parkable(subject).export_state().n_bytes)
    assert sizes[2] - sizes[1] == pytest.approx(sizes[1] - sizes[0], rel=0.1)
    assert sizes[0] == pytest.approx(sizes[1] - sizes[0], rel=0.1)


def test_a_state_of_another_model_is_refused(
    subject: LogitsBackend, oracle: LogitsBackend, tokens: list[int]
) -> None:
    oracle.truncate(0)
    oracle.forward(tokens[10:20], 1)
    state = parkable(oracle).export_state()
    subject.forward(tokens[:4], 4)
    with pytest.raises(BackendError, match=f"^{re.escape(subject.name)}: .* loaded apart.*$"):
        parkable(subject).import_state(state)
    assert subject.n_past == 4
    rows = subject.forward(tokens[4:8], 4)
    np.testing.assert_array_equal(rows, fresh(oracle, chunked(tokens[:8], 4))[4:])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError("no room")])
def test_a_failed_import_leaves_an_empty_cache(
    subject: LogitsBackend,
    oracle: LogitsBackend,
    tokens: list[int],
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not isinstance(subject, RewindingModel):
        pytest.skip("a toy imports in one step")
    subject.forward(tokens[:20], 1)
    state = parkable(subject).export_state()
    subject.forward(tokens[20:30], 1)
    whole = subject._import

    def strike(state: Any, n_past: int) -> None:
        whole(state, n_past)
        raise error

    monkeypatch.setattr(subject, "_import", strike)
    with pytest.raises((KeyboardInterrupt, BackendError)):
        parkable(subject).import_state(state)
    assert subject.n_past == 0
    chunks = chunked(tokens[30:38], 4)
    np.testing.assert_array_equal(feed(subject, chunks), fresh(oracle, chunks))


# Mistakes of the caller

MISTAKES: dict[str, tuple[Callable[[LogitsBackend, list[int]], object], type[Exception]]] = {
    "more logits than tokens": (lambda b, ids: b.forward(ids[:2], 3), BackendError),
    "negative n_logits": (lambda b, ids: b.forward(ids[:2], -1), BackendError),
    "no tokens": (lambda b, ids: b.forward([], 0), BackendError),
    "negative token": (lambda b, ids: b.forward([ids[0], -1]), BackendError),
    "token out of range": (lambda b, ids: b.forward([ids[0], b.n_vocab]), BackendError),
    "context too small": (lambda b, ids: b.forward(ids[:1] * (b.n_ctx - 3)), ContextError),
    "nested tokens": (lambda b, ids: b.forward(cast(Any, [ids[:2]])), BackendError),
    "ragged tokens": (lambda b, ids: b.forward(cast(Any, [ids[0], ids[:2]])), BackendError),
    "a set of tokens": (lambda b, ids: b.forward(cast(Any, set(ids))), BackendError),
    "bytes": (lambda b, ids: b.forward(b"abc"), BackendError),
    "text": (lambda b, ids: b.forward(cast(Any, "abc")), BackendError),
    "one number": (lambda b, ids: b.forward(cast(Any, ids[0])), BackendError),
    "fractions": (lambda b, ids: b.forward(cast(Any, [float(ids[0])])), BackendError),
    "an array of fractions": (lambda b, ids: b.forward(cast(Any, np.ones(2))), BackendError),
    "bools": (lambda b, ids: b.forward([True, False]), BackendError),
    "None among tokens": (lambda b, ids: b.forward(cast(Any, [ids[0], None])), BackendError),
    "a token of 70 bits": (lambda b, ids: b.forward([ids[0], 1 << 70]), BackendError),
    "a token of 5,000 digits": (lambda b, ids: b.forward([10**5000]), BackendError),
    "a token that would wrap": (lambda b, ids: b.forward([(1 << 32) + ids[0]]), BackendError),
    "n_logits is a bool": (lambda b, ids: b.forward(ids[:2], True), BackendError),
    "n_logits is text": (lambda b, ids: b.forward(ids[:2], cast(Any, "1")), BackendError),
    "truncate to a bool": (lambda b, ids: b.truncate(True), BackendError),
    "truncate to a fraction": (lambda b, ids: b.truncate(cast(Any, 3.0)), BackendError),
    "truncate to nothing": (lambda b, ids: b.truncate(cast(Any, None)), BackendError),
    "truncate forwards": (lambda b, ids: b.truncate(b.n_past + 1), BackendError),
    "truncate below 0": (lambda b, ids: b.truncate(-1), BackendError),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_changes_nothing(
    subject: LogitsBackend, oracle: LogitsBackend, tokens: list[int], mistake: str
) -> None:
    call, error = MISTAKES[mistake]
    subject.forward(tokens[:4], 4)
    with pytest.raises(error, match=re.escape(subject.name)):
        call(subject, tokens)
    assert subject.n_past == 4
    rows = subject.forward(tokens[4:8], 4)
    np.testing.assert_array_equal(rows, fresh(oracle, chunked(tokens[:8], 4))[4:])


@pytest.mark.parametrize("name", ["n_ctx", "n_batch", "threads", "n_gpu_layers"])
@pytest.mark.parametrize(
    "value",
    [(1 << 32) + 1, 1 << 31, -2, True, "5", 2.0, 10**5000],
    ids=lambda value: str(type(value)),
)
def test_numbers_beyond_a_c_int_are_refused(model: Model, name: str, value: Any) -> None:
    kind = OptionError if type(value) is int else UsageError
    with pytest.raises(kind, match=f"{name} is .*; it must be a whole number"):
        model.open(**{name: value})


def test_ids_may_come_as_any_sequence(
    subject: LogitsBackend, oracle: LogitsBackend, tokens: list[int]
) -> None:
    subject.forward(tuple(tokens[:4]), 4)
    subject.forward(cast(Any, np.array(tokens[4:6], np.int32)), 2)
    rows = subject.forward([np.int64(token) for token in tokens[6:8]], 2)
    np.testing.assert_array_equal(rows, fresh(oracle, [tokens[:4], tokens[4:6], tokens[6:8]])[6:])


def test_options_not_honoured_are_refused(model: Model) -> None:
    refused = sorted(set(SOME_VALUE) - model.factory.options)
    if not refused:
        pytest.skip("this backend honours every option")
    for name in refused:
        with pytest.raises(OptionError, match=name):
            reject_unsupported(model.factory, LoadOptions(**{name: SOME_VALUE[name]}))
        with pytest.raises(OptionError, match=name):
            model.open(**{name: SOME_VALUE[name]})


def test_the_need_for_context_is_asked(model: Model) -> None:
    asked: list[list[int]] = []

    def need(tokenizer: Tokenizer) -> int:
        asked.append(tokenizer.encode(model.text, add_special=False, parse_special=False))
        return len(asked[-1])

    with model.open(n_ctx=None, need_ctx=need) as subject:
        assert len(asked) == 1
        assert subject.n_ctx >= len(asked[0])


def test_closed_is_closed(model: Model, tokens: list[int]) -> None:
    with model.open() as subject:
        subject.forward(tokens[:4])
        state = parkable(subject).export_state()
    subject.close()
    for call in (lambda: subject.forward(tokens[:1]), lambda: subject.truncate(0)):
        with pytest.raises(BackendError):
            call()
    with pytest.raises(BackendError):
        subject.checkpoint()
    with pytest.raises(BackendError):
        parkable(subject).export_state()
    with pytest.raises(BackendError):
        parkable(subject).import_state(state)


# What a backend says of itself


def test_facts(model: Model, subject: LogitsBackend, tokens: list[int]) -> None:
    assert isinstance(model.factory, BackendFactory)
    assert subject.name == f"{model.factory.name}:{Path(model.path).name}"
    assert subject.rollback in get_args(Rollback)
    assert subject.n_ctx >= N_CTX
    start = subject.clock()
    subject.forward(tokens[:4])
    assert subject.clock() > start


def test_descriptions_are_json(model: Model, subject: LogitsBackend) -> None:
    for facts in (subject.describe(), dict(model.factory.about())):
        assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    described = subject.describe()
    keys = {"file", "bytes", "quantisation", "devices", "threads", "rollback", "versions"}
    assert keys <= set(described)
    content = Path(model.path).read_bytes()
    assert described["bytes"] == len(content)
    sha256 = hashlib.sha256(content).hexdigest()
    assert described.get("sha256", sha256) == sha256  # may be left out where hashing is slow


# Text


@pytest.mark.parametrize("text", AWKWARD)
def test_text_comes_back(oracle: LogitsBackend, text: str) -> None:
    tokenizer = oracle.tokenizer
    tokens = tokenizer.encode(text, add_special=False, parse_special=False)
    assert all(0 <= token < oracle.n_vocab for token in tokens)
    assert b"".join(map(tokenizer.token_bytes, tokens)) == text.encode()


def test_end_tokens_end_and_print_nothing(oracle: LogitsBackend) -> None:
    tokenizer = oracle.tokenizer
    assert tokenizer.eog_ids
    assert tokenizer.eos_id is None or tokenizer.eos_id in tokenizer.eog_ids
    for token in tokenizer.eog_ids:
        assert 0 <= token < oracle.n_vocab
        assert tokenizer.token_bytes(token) == b""
        name = tokenizer.token_text(token)
        assert name
        assert tokenizer.encode(name, add_special=False, parse_special=True) == [token]
        assert tokenizer.encode(name, add_special=False, parse_special=False) != [token]


def test_bos_is_added_when_asked_for(oracle: LogitsBackend) -> None:
    tokenizer = oracle.tokenizer
    plain = tokenizer.encode("a", add_special=False, parse_special=False)
    special = tokenizer.encode("a", add_special=True, parse_special=False)
    assert special[-len(plain) :] == plain or special[: len(plain)] == plain
    assert [token == tokenizer.bos_id for token in special].count(True) <= 1
    assert tokenizer.bos_id not in plain


def test_padding_has_no_token(oracle: LogitsBackend) -> None:
    tokenizer = oracle.tokenizer
    padding = tokenizer.padding_ids
    assert padding.dtype == np.intp
    assert (np.diff(padding) > 0).all()
    assert ((padding >= 0) & (padding < oracle.n_vocab)).all()
    assert tokenizer.eog_ids.isdisjoint(padding.tolist())
    for token in padding[:5].tolist():
        assert tokenizer.token_text(token) == ""
        assert tokenizer.token_bytes(token) == b""
