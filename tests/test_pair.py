"""A pair refuses by name what it cannot work with, and serves one generation at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specx import LoadOptions, Pair, Settings, Stop, get_backend
from specx.errors import BackendError, UsageError
from specx.runtime.uncached import Uncached
from specx.session.decoding import Round
from specx_backends.toy import Toy, ToyTable

TABLE = ToyTable(tokens=("<s>", "a", "b"), rows={(): (0.0, 0.5, 0.5)}, bos="<s>")
IN_USE = "toy:table is in use by another generation"


def begin(pair: Pair, n: int = 8) -> Any:
    """A generation of `pair`, from an empty cache."""
    return pair.rounds([0], Settings(gamma=2), Stop(pair.verifier.tokenizer, n))


@pytest.fixture
def pair() -> Pair:
    return Pair(Toy(TABLE), Toy(TABLE))


def test_two_generations_at_once_are_refused_until_the_first_ends(pair: Pair) -> None:
    first = begin(pair)
    next(first)
    with pytest.raises(BackendError, match=IN_USE):
        next(begin(pair))
    with pytest.raises(BackendError, match=IN_USE):
        pair.prefill([0, 1])
    assert len(list(first)) > 0
    empty(pair)
    assert len(list(begin(pair))) > 0


def empty(pair: Pair) -> None:
    for model in pair.models:
        model.truncate(0)


@pytest.mark.parametrize("wrap", [lambda model: model, Uncached])
def test_two_pairs_on_one_model_take_turns(pair: Pair, wrap: Callable[[Toy], Any]) -> None:
    other = Pair(wrap(pair.verifier))  # type: ignore[arg-type]
    first = begin(pair)
    next(first)
    with pytest.raises(BackendError, match=IN_USE):
        next(begin(other))
    first.close()
    empty(pair)
    assert isinstance(next(begin(other)), Round)


def test_a_forgotten_generation_holds_nothing(pair: Pair) -> None:
    for _ in begin(pair):
        break
    empty(pair)
    assert isinstance(next(begin(pair)), Round)


def test_of_threads_one_gets_the_pair_and_the_others_are_told(pair: Pair) -> None:
    barrier, done = threading.Barrier(4), threading.Event()
    told: list[str] = []

    def work() -> None:
        mine = begin(pair)
        barrier.wait()
        try:
            next(mine)
            done.wait(30)
        except BackendError as error:
            told.append(str(error))
        if len(told) == 3:
            done.set()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(told) == 3
    assert all(IN_USE in text for text in told)


def test_one_model_cannot_be_both_verifier_and_drafter() -> None:
    model = Toy(TABLE)
    for drafter in (model, Uncached(model)):
        with pytest.raises(UsageError, match="toy:table is both verifier and drafter"):
            Pair(model, drafter)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ((0, 1), "tokens is of type tuple; give a list"),
        (np.array([0, 1]), "tokens is of type ndarray; give a list"),
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
        pair.rounds(tokens, Settings(), Stop(pair.verifier.tokenizer, 1))


def test_a_prompt_may_be_any_sequence(pair: Pair) -> None:
    for tokens in ((0, 1, 2), np.array([0, 1, 2]), [0, 1, 2]):
        empty(pair)
        assert len(pair.prefill(tokens)) == 2  # type: ignore[arg-type]
        assert [model.n_past for model in pair.models] == [2, 2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gamma", None),
        ("gamma", "4"),
        ("gamma", -1),
        ("gamma", 1.5),
        ("seed", -1),
        ("seed", None),
        ("rule", None),
        ("rule", "best"),
        ("sampling", None),
        ("draft", "model"),
        ("draft_sampling", 0.5),
        ("entropy_stop", "0.5"),
    ],
)
def test_settings_of_another_kind_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}.*{value}"):
        Settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_ctx", "5"), ("threads", 1.5), ("n_batch", True), ("dtype", 16), ("offline", "no")],
)
def test_load_options_of_another_kind_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value!r}"):
        LoadOptions(**{name: value})


@pytest.mark.parametrize("backend", ["toy", "llamacpp", "hf"])
@pytest.mark.parametrize("model", ["a\0b", "", None, 5, Path("a\0b")])
def test_what_cannot_be_a_models_name_is_refused(backend: str, model: Any) -> None:
    with pytest.raises(UsageError, match="model is .*; give the path of a file, or a name"):
        get_backend(backend).load(model, LoadOptions())
