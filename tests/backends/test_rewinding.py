"""Feeding, rewinding and undoing, over a fake runtime whose cache can be looked into."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest

from specx.errors import BackendError
from specx.runtime.backend import Rollback, Tokenizer
from specx_backends.rewinding import NO_ROWS, Ids, RewindingModel, Rows, calls

N_VOCAB = 50


class Fake(RewindingModel[tuple[int, ...]]):
    """Its cache is a list of tokens, its logits tell the tokens before them."""

    def __init__(self, able: Rollback, *, n_batch: int = 8, together: bool = True) -> None:
        super().__init__(
            name="fake",
            n_vocab=N_VOCAB,
            n_ctx=100,
            tokenizer=cast(Tokenizer, None),
            n_batch=n_batch,
            most_rows=3,
        )
        self.able = able
        self.cache: list[int] = []
        self.calls: list[int] = []
        """Tokens of each call to the runtime."""
        self.fail: Callable[[str], None] = lambda step: None
        """Called after each step on the cache with its name."""
        self.closed = False
        self._find_rollback()
        self._together = together
        self.calls.clear()

    def describe(self) -> dict[str, object]:
        return {}

    def close(self) -> None:
        self.closed = True

    def _require_open(self) -> None:
        if self.closed:
            raise BackendError("fake was closed")

    def _run(self, ids: Ids, rows: Rows) -> None:
        self.calls.append(ids.size)
        for token in ids.tolist():
            self.cache.append(token)
            self.fail("run")
        for row in range(len(rows)):
            rows[row] = logits(self.cache[: len(self.cache) - len(rows) + row + 1])

    def _synchronize(self) -> None:
        self.fail("synchronize")

    def _clear(self) -> None:
        self.cache.clear()
        self.fail("clear")

    def _cut(self, n_past: int) -> None:
        if self.able != "native":
            raise BackendError("fake cannot cut")
        del self.cache[n_past:]
        self.fail("cut")

    def _save(self) -> tuple[int, ...]:
        if self.able == "none":
            raise BackendError("fake cannot save")
        return tuple(self.cache)

    def _restore(self, state: tuple[int, ...], n_past: int) -> None:
        assert len(state) == n_past
        self.cache = list(state)
        self.fail("restore")

    def _export(self) -> tuple[tuple[int, ...], int]:
        self.fail("export")
        return tuple(self.cache), 4 * len(self.cache)

    def _import(self, state: tuple[int, ...], n_past: int) -> None:
        assert self.cache == []
        for token in state:
            self.cache.append(token)
            self.fail("import")

    def _comes_back(self) -> bool:
        try:
            self._call(np.array([1, 2]))
            self.checkpoint()
            self._call(np.array([3]), NO_ROWS)
            self._forget(2)
        except BackendError:
            return False
        return self.cache == [1, 2]


def logits(tokens: list[int]) -> Rows:
    return np.random.default_rng(tokens).normal(size=N_VOCAB).astype(np.float32)


def interrupt(step: str) -> Callable[[str], None]:
    """Ctrl-C at the first `step`, and at no other."""
    return failing(step, KeyboardInterrupt())


def failing(step: str, error: BaseException) -> Callable[[str], None]:
    """Raises `error` at the first `step`, and at no other."""
    steps = [step]

    def fail(now: str) -> None:
        if now in steps:
            steps.remove(now)
            raise error

    return fail


@pytest.mark.parametrize("able", ["native", "checkpoint", "none"])
def test_rollback_is_found_by_trying_and_leaves_nothing_behind(able: Rollback) -> None:
    model = Fake(able)
    assert (model.rollback, model.n_past, model.cache) == (able, 0, [])


@pytest.mark.parametrize("able", ["native", "checkpoint"])
def test_an_interrupted_call_is_undone(able: Rollback) -> None:
    model = Fake(able)
    model.forward([5, 6])
    model.checkpoint()
    model.forward([7])
    model.fail = interrupt("run")
    with pytest.raises(KeyboardInterrupt):
        model.forward([8, 9])
    assert (model.n_past, model.cache) == (3, [5, 6, 7])
    np.testing.assert_array_equal(model.forward([8])[0], logits([5, 6, 7, 8]))


def test_what_cannot_be_undone_is_emptied() -> None:
    model = Fake("none")
    model.forward([5, 6])
    model.fail = interrupt("run")
    with pytest.raises(KeyboardInterrupt):
        model.forward([7, 8])
    assert (model.n_past, model.cache) == (0, [])


@pytest.mark.parametrize("able", ["native", "checkpoint", "none"])
def test_position_0_is_empty_even_where_nothing_was_counted(
    able: Rollback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the first call is undone: the cache holds what nobody has counted."""
    model = Fake(able)
    model.fail = interrupt("run")

    def interrupted(n_past: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "_undo", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.forward([5, 6])
    assert (model.n_past, model.cache) == (0, [5])
    model.truncate(0)
    assert model.cache == []
    np.testing.assert_array_equal(model.forward([7])[0], logits([7]))


@pytest.mark.parametrize("able", ["native", "checkpoint"])
@pytest.mark.parametrize("step", ["run", "synchronize", "clear", "cut", "restore"])
@pytest.mark.parametrize("n_past", [0, 2, 3])
def test_after_an_interrupt_anywhere_position_0_is_a_fresh_start(
    able: Rollback, step: str, n_past: int
) -> None:
    model = Fake(able)
    model.forward([5, 6])
    model.checkpoint()
    model.forward([7, 8, 9])
    model.fail = interrupt(step)
    try:
        model.truncate(n_past)
        model.forward([10, 11], 0)
    except KeyboardInterrupt:
        pass
    model.fail = lambda step: None
    model.truncate(0)
    for token in (12, 13):
        rows = model.forward([token])
    model.checkpoint()
    model.forward([14])
    model.truncate(2)
    np.testing.assert_array_equal(rows[0], logits([12, 13]))
    np.testing.assert_array_equal(model.forward([15])[0], logits([12, 13, 15]))


@pytest.mark.parametrize("able", ["native", "checkpoint", "none"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError("no room")])
@pytest.mark.parametrize("step", ["clear", "import"])
def test_an_import_that_fails_leaves_an_empty_cache(
    able: Rollback, error: BaseException, step: str
) -> None:
    model = Fake(able)
    model.forward([5, 6, 7])
    state = model.export_state()
    model.forward([8])
    model.fail = failing(step, error)
    with pytest.raises((KeyboardInterrupt, MemoryError, BackendError)) as caught:
        model.import_state(state)
    if step == "import" and isinstance(error, MemoryError):
        assert str(caught.value) == "fake: a parked cache could not be copied back (no room)"
    assert (model.n_past, model.cache) == (0, [])
    np.testing.assert_array_equal(model.forward([9])[0], logits([9]))
    model.import_state(state)
    assert (model.n_past, model.cache) == (3, [5, 6, 7])


def test_no_memory_for_a_checkpoint_after_an_import_leaves_an_empty_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Fake("checkpoint")
    model.forward([5, 6])
    state = model.export_state()
    monkeypatch.setattr(model, "_save", lambda: failing("save", MemoryError())("save"))
    with pytest.raises(MemoryError):
        model.import_state(state)
    assert (model.n_past, model.cache) == (0, [])


@pytest.mark.parametrize("able", ["native", "checkpoint"])
def test_an_import_is_where_a_model_can_return_to(able: Rollback) -> None:
    model = Fake(able)
    model.forward([5, 6])
    state = model.export_state()
    model.truncate(0)
    model.forward([1, 2, 3, 4])
    model.checkpoint()
    model.import_state(state)
    model.forward([7, 8])
    model.truncate(2)
    assert (model.n_past, model.cache) == (2, [5, 6])
    model.calls.clear()
    model.truncate(2)
    assert model.calls == []


def test_a_failed_export_is_told_in_one_line_and_changes_nothing() -> None:
    model = Fake("native")
    model.forward([5, 6])
    model.fail = failing("export", MemoryError("no room"))
    with pytest.raises(
        BackendError, match=r"^fake: its cache could not be copied out \(no room\)$"
    ):
        model.export_state()
    assert (model.n_past, model.cache) == (2, [5, 6])


def test_truncating_to_where_it_is_does_not_touch_the_runtime() -> None:
    model = Fake("checkpoint")
    model.forward([5, 6])
    model.fail = interrupt("restore")
    model.truncate(2)
    assert model.cache == [5, 6]


def test_only_what_came_after_the_checkpoint_is_fed_again() -> None:
    model = Fake("checkpoint", n_batch=3)
    model.forward([1, 2, 3, 4])
    model.checkpoint()
    model.forward([5, 6, 7, 8, 9])
    model.calls.clear()
    model.truncate(8)
    assert (model.calls, model.cache) == ([3, 1], [1, 2, 3, 4, 5, 6, 7, 8])
    model.truncate(5)
    assert model.cache == [1, 2, 3, 4, 5]
    with pytest.raises(BackendError, match="to 3, before the checkpoint at 4"):
        model.truncate(3)
    assert model.n_past == 5
    model.forward([30, 31])
    model.truncate(6)  # what was forgotten before is not fed again
    assert model.cache == [1, 2, 3, 4, 5, 30]


def test_without_a_checkpoint_all_is_fed_again() -> None:
    model = Fake("checkpoint")
    model.forward([1, 2, 3])
    model.truncate(2)
    assert (model.n_past, model.cache) == (2, [1, 2])


def test_tokens_that_may_not_go_together_go_one_by_one_after_the_first_call() -> None:
    model = Fake("native", together=False)
    model.forward(range(10), 0)
    model.forward([1, 2])
    assert model.calls == [8, 1, 1, 1, 1]


def test_leaving_its_block_closes_it() -> None:
    with Fake("native") as model:
        model.forward([1])
    for call in (lambda: model.forward([1]), lambda: model.truncate(0), model.checkpoint):
        with pytest.raises(BackendError, match="closed"):
            call()


# Cutting into calls


@pytest.mark.parametrize("width", [1, 7, 64, 512])
@pytest.mark.parametrize("n_tokens", [1, 8, 65, 200, 1100])
def test_calls_cover_all_and_lose_no_row(width: int, n_tokens: int) -> None:
    for n_logits in {0, 1, 5, 64, 65, n_tokens} & set(range(n_tokens + 1)):
        cut = list(calls(n_tokens, n_logits, width, width, 64))
        assert [start for start, _, _ in cut] == [0, *(stop for _, stop, _ in cut[:-1])]
        assert cut[-1][1] == n_tokens
        wanted = [i for _, stop, n in cut for i in range(stop - n, stop)]
        assert wanted == list(range(n_tokens - n_logits, n_tokens))
        assert all(stop - start <= width and n <= 64 for start, stop, n in cut)


@pytest.mark.parametrize(
    ("n_tokens", "n_logits", "first", "rest", "most_rows", "cut"),
    [
        (5, 2, 8, 8, 8, [(0, 5, 2)]),
        (5, 0, 2, 2, 2, [(0, 2, 0), (2, 4, 0), (4, 5, 0)]),
        (5, 4, 2, 2, 2, [(0, 2, 1), (2, 4, 2), (4, 5, 1)]),
        (5, 2, 3, 1, 3, [(0, 3, 0), (3, 4, 1), (4, 5, 1)]),
        (5, 4, 8, 8, 3, [(0, 4, 3), (4, 5, 1)]),
    ],
)
def test_calls_are_cut_to_the_batch_and_to_the_rows(
    n_tokens: int,
    n_logits: int,
    first: int,
    rest: int,
    most_rows: int,
    cut: list[tuple[int, int, int]],
) -> None:
    assert list(calls(n_tokens, n_logits, first, rest, most_rows)) == cut
