"""The toy backend: its file format, its logits, its clock. What all backends do: test_contract."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specx.errors import BackendError, ContextError, ModelError, OptionError, UsageError
from specx.runtime.backend import LoadOptions, get_backend
from specx_backends import toy, toy_table
from specx_backends.toy import CLOCK, Toy, ToyTable, backend

AB = ToyTable(tokens=("a", "b"), rows={(): (0.5, 0.5)})
GOOD = 'vocabulary = ["a", "b"]\nrow = [{ next = { a = 0.5, b = 0.5 } }]\n'


def example() -> str:
    """The table in the module's docstring."""
    assert toy_table.__doc__ is not None
    block = toy_table.__doc__.split("::\n\n", 1)[1].split("\n\nTokens.", 1)[0]
    return textwrap.dedent(block)


def load(folder: Path, text: str, options: LoadOptions | None = None) -> Toy:
    path = folder / "table.toml"
    path.write_text(text, encoding="utf-8")
    loaded = backend.load(str(path), options or LoadOptions())
    assert isinstance(loaded, Toy)
    return loaded


# The format


def test_the_documented_example_means_what_it_says(tmp_path: Path) -> None:
    model = load(tmp_path, example())
    names = ["<s>", "</s>", "<|user|>", "the", " cat", " dog", " sat", "<0xE2>", "", ""]
    assert [model.tokenizer.token_text(token) for token in range(model.n_vocab)] == names
    assert model.tokenizer.padding_ids.tolist() == [8, 9]
    assert (model.tokenizer.bos_id, model.tokenizer.eos_id) == (0, 1)
    assert model.tokenizer.eog_ids == {1}
    assert model.tokenizer.chat_template == "{{ messages[0].content }}"
    assert (model.n_ctx, model.rollback) == (512, "native")
    assert spent(lambda: model.forward([0, 3, 4])) == pytest.approx(0.014)
    assert spent(lambda: model.truncate(0)) == pytest.approx(0.001)
    rows = model.forward([0, 3, 4], 3)
    np.testing.assert_allclose(np.exp(rows[0]), [0, 0.25, 0, 0.75, 0, 0, 0, 0, 1, 1])
    np.testing.assert_allclose(np.exp(rows[1]), [0, 0, 0, 0, 0.5, 0.5, 0, 0, 1, 1])
    np.testing.assert_allclose(np.exp(rows[2]), [0, 0, 0, 0, 0, 0, 1, 0, 1, 1])


def test_defaults_are_those_documented(tmp_path: Path) -> None:
    model = load(tmp_path, GOOD)
    assert (model.n_ctx, model.n_vocab, model.rollback) == (4096, 2, "native")
    assert (model.tokenizer.bos_id, model.tokenizer.eos_id) == (None, None)
    assert model.tokenizer.eog_ids == frozenset()
    assert model.tokenizer.chat_template is None
    assert spent(lambda: model.forward([0, 1])) == pytest.approx(0.01)
    assert spent(lambda: model.truncate(0)) == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("vocabulary = [", "not a TOML table"),
        ("a = " + "[" * 9999, "not a TOML table"),
        ("row = [{ next = { a = 1.0 } }]", "'vocabulary' is missing"),
        ('vocabulary = ["a"]', "'row' is missing"),
        (GOOD + "vocabular = 1", "unknown key 'vocabular'; known: vocabulary, bos,"),
        (GOOD + "[cost]\nforwards = [1]", "unknown key 'cost.forwards'; known: cost.forward,"),
        ('vocabulary = ["a"]\n[[row]]\nnext.a = 1\nafer = []', "unknown key 'row.afer'"),
        ('vocabulary = ["a"]\n[[row]]\nafter = []', "'row.next' is missing"),
        ('vocabulary = "ab"\nrow = []', "vocabulary is 'ab'; give a list of strings"),
        ("vocabulary = [1]\nrow = []", "vocabulary is 1; give a string"),
        ("vocabulary = []\nrow = []", "vocabulary is empty"),
        ('vocabulary = ["a", ""]\nrow = []', "empty token"),
        ('vocabulary = ["a", "b", "a"]\nrow = []', "lists ['a'] more than once"),
        ('vocabulary = ["a"]\nrow = []', "no row without 'after'"),
        ('vocabulary = ["a"]\n[row]\nnext = 1', "give tables headed [[row]]"),
        ('vocabulary = ["a"]\n[[row]]\nnext = 1', "row.next is 1; give a table"),
        ('vocabulary = ["a"]\n[[row]]\nnext = { a = true }', "row.next.'a' is True; give a number"),
        ('vocabulary = ["a"]\n[[row]]\nnext = { b = 1 }', "row.next names 'b', not in vocabulary"),
        ('vocabulary = ["a"]\n[[row]]\nafter = ["b"]', "row.after names 'b', not in vocabulary"),
        ('vocabulary = ["a"]\nrow = [{ next = { a = 0.9 } }]', "row after [] sums to 0.9; make"),
        ('vocabulary = ["a"]\nrow = [{ next = { a = inf } }]', "sums to inf"),
        ('vocabulary = ["a", "b"]\nrow = [{ next = { a = 2, b = -1 } }]', "holds -1"),
        (GOOD.replace("0.5 }", "0.50001 }"), "sums to 1.00001;"),
        (GOOD + "[[row]]\nnext = { a = 1 }", "not a TOML table"),
        (GOOD.replace("}]", "}, { next = { a = 1 } }]"), "two rows after []; keep one"),
        (GOOD + 'bos = "c"', "bos, eog or control name ['c']"),
        (GOOD + 'eog = ["c"]', "bos, eog or control name ['c']"),
        (GOOD + 'control = ["c"]', "bos, eog or control name ['c']"),
        (GOOD + "padding = -1", "padding is -1"),
        (GOOD + "padding = 1.5", "padding is 1.5; give a whole number"),
        (GOOD + "padding = true", "padding is True; give a whole number"),
        (GOOD + "context = 0", "context is 0"),
        (GOOD + 'rollback = "some"', "rollback is 'some'; give one of ['native',"),
        (GOOD + "cost = { forward = [] }", "cost.forward is empty"),
        (GOOD + "cost = { forward = [-1] }", "cost.forward holds -1"),
        (GOOD + "cost = { forward = [nan] }", "cost.forward holds nan"),
        (GOOD + "cost = { truncate = inf }", "cost.truncate holds inf"),
        (GOOD + "cost = { forward = [3, 2] }", "cost.forward falls at its end"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ModelError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'table.toml'}: ")
    assert complaint in message
    assert "\n" not in message


def test_a_file_that_is_no_table_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "weights.gguf"
    weights.write_bytes(b"GGUF\x03\x00\xff\xff")
    with pytest.raises(ModelError, match=r"weights\.gguf: not a TOML table"):
        backend.load(str(weights), LoadOptions())
    with pytest.raises(ModelError, match=r"absent\.toml: No such file.*; give the path"):
        backend.load(str(tmp_path / "absent.toml"), LoadOptions())
    with pytest.raises(ModelError, match="; give the path of a TOML table"):
        backend.load(str(tmp_path), LoadOptions())
    monkeypatch.setattr(toy, "MOST_BYTES", 7)
    with pytest.raises(ModelError, match=r"weights\.gguf: 8 bytes are no TOML table"):
        backend.load(str(weights), LoadOptions())


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ({(): (1.0,)}, "row after [] has 1 entries; give 2"),
        ({(): (0.5, 0.5), (1, 2): (0.5, 0.5)}, "row after ids [1, 2] names an id outside 0..1"),
        ({(0,): (0.5, 0.5)}, "no row without 'after'"),
    ],
)
def test_a_table_made_in_python_is_checked_too(
    rows: dict[tuple[int, ...], tuple[float, ...]], complaint: str
) -> None:
    with pytest.raises(ModelError) as caught:
        ToyTable(tokens=("a", "b"), rows=rows)
    assert complaint in str(caught.value)


# Logits


def test_the_longest_listed_context_holds() -> None:
    rows = {(): (0.2, 0.8), (0,): (0.3, 0.7), (1, 0): (0.4, 0.6), (0, 1, 0): (0.1, 0.9)}
    model = Toy(ToyTable(tokens=("a", "b"), rows=rows))
    got = np.exp(model.forward([0, 1, 0, 0, 1, 1, 0], 7)[:, 0])
    np.testing.assert_allclose(got, [0.3, 0.2, 0.1, 0.3, 0.2, 0.2, 0.4], rtol=1e-6)


def test_the_context_reaches_over_calls() -> None:
    model = Toy(ToyTable(tokens=("a", "b"), rows={(): (0.5, 0.5), (1, 0): (0.0, 1.0)}))
    model.forward([1], 0)
    np.testing.assert_array_equal(model.forward([0]), [[-np.inf, 0]])


@given(st.lists(st.floats(0, 1), min_size=2, max_size=2).filter(lambda p: sum(p) > 0.01))
def test_logits_are_the_logarithms(weights: list[float]) -> None:
    row = tuple(w / sum(weights) for w in weights)
    logits = Toy(replace(AB, rows={(): row})).forward([0])[0]
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(logits, np.log(row).astype(np.float32))


def test_nan_makes_nan(tmp_path: Path) -> None:
    model = load(tmp_path, GOOD.replace("a = 0.5", "a = nan"))
    logits = model.forward([0])[0]
    assert np.isnan(logits[0])
    assert not np.isnan(logits[1])


def test_padding_looks_certain() -> None:
    model = Toy(replace(AB, padding=2))
    assert model.n_vocab == 4
    assert model.forward([3])[0].argmax() == 2


# Rollback


def test_an_emptied_toy_forgets_its_checkpoint() -> None:
    model = Toy(replace(AB, rollback="checkpoint"))
    model.forward([0, 1])
    model.checkpoint()
    model.forward([0, 1])
    model.truncate(0)
    model.forward([0, 1, 0, 1])
    with pytest.raises(BackendError, match=r"cannot go back to 3 .*last checkpoint: none"):
        model.truncate(3)


# Time


def spent(work: Callable[[], object]) -> float:
    start = CLOCK()
    work()
    return CLOCK() - start


@pytest.mark.parametrize(
    ("costs", "n_tokens", "seconds"),
    [
        ((2.0,), 1, 2.0),
        ((2.0,), 9, 2.0),
        ((2.0, 2.5, 4.0), 1, 2.0),
        ((2.0, 2.5, 4.0), 2, 2.5),
        ((2.0, 2.5, 4.0), 3, 4.0),
        ((2.0, 2.5, 4.0), 5, 7.0),
    ],
)
def test_forward_costs_what_the_table_says(
    costs: tuple[float, ...], n_tokens: int, seconds: float
) -> None:
    model = Toy(replace(AB, forward_cost=costs))
    assert spent(lambda: model.forward([0] * n_tokens)) == pytest.approx(seconds)


def test_forgetting_costs_and_a_no_op_does_not() -> None:
    model = Toy(replace(AB, truncate_cost=3.0))
    model.forward([0, 1])
    assert spent(lambda: model.truncate(2)) == 0
    assert spent(lambda: model.truncate(1)) == 3


def test_all_toys_share_one_clock() -> None:
    some, other = Toy(AB), Toy(replace(AB, forward_cost=(5.0,)))
    start = some.clock()
    other.forward([0])
    assert some.clock() - start == pytest.approx(5)


def test_a_refused_call_takes_no_time() -> None:
    model = Toy(AB, n_ctx=2)

    def refused() -> None:
        with pytest.raises(ContextError):
            model.forward([0, 0, 0])

    assert spent(refused) == 0


# Text

WORDS = ToyTable(
    tokens=("<s>", "</s>", "<|user|>", "a", "ab", "abc", "<0xC3>", "<0xA9>", "<0x61>"),
    rows={(): (0, 0, 0, 1, 0, 0, 0, 0, 0)},
    bos="<s>",
    eog=("</s>",),
    control=("<|user|>",),
    padding=1,
)


def encode(text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
    tokenizer = Toy(WORDS).tokenizer
    return tokenizer.encode(text, add_special=add_special, parse_special=parse_special)


def test_the_longest_token_is_taken() -> None:
    assert encode("aababcab") == [3, 4, 5, 4]
    assert encode("") == []


def test_a_character_can_be_spelled_in_bytes() -> None:
    tokenizer = Toy(WORDS).tokenizer
    assert encode("\u00e9a") == [6, 7, 3]
    assert [tokenizer.token_bytes(token) for token in (6, 7, 8)] == [b"\xc3", b"\xa9", b"a"]
    assert tokenizer.token_text(6) == "<0xC3>"


def test_control_tokens_are_read_only_when_asked_for() -> None:
    assert encode("a<|user|>a</s>", add_special=True, parse_special=True) == [0, 3, 2, 3, 1]
    with pytest.raises(UsageError, match="no token for '<'"):
        encode("a<|user|>")


def test_control_tokens_and_padding_print_nothing() -> None:
    tokenizer = Toy(WORDS).tokenizer
    assert [tokenizer.token_bytes(token) for token in (0, 1, 2, 9)] == [b""] * 4
    assert [tokenizer.token_text(token) for token in (1, 2, 9)] == ["</s>", "<|user|>", ""]


@pytest.mark.parametrize(("text", "character"), [("ab\u65e5", "\u65e5"), ("abca\n", "\n")])
def test_text_that_cannot_be_spelled_is_named(text: str, character: str) -> None:
    with pytest.raises(UsageError) as caught:
        encode(text)
    expected = f"toy:table has no token for {character!r}; it can spell: 'a', 'ab', 'abc', "
    assert str(caught.value).startswith(expected)


# Loading


def test_it_is_found_by_name() -> None:
    assert get_backend("toy") is backend


@pytest.mark.parametrize(
    ("context", "given", "need", "n_ctx"),
    [
        (64, None, 10, 64),
        (64, None, 100, 64),
        (9000, None, 10, 4096),
        (9000, None, 5000, 5000),
        (9000, 7, 5000, 7),
        (64, 100, 10, 100),
    ],
)
def test_the_context_is_as_large_as_needed(
    tmp_path: Path, context: int, given: int | None, need: int, n_ctx: int
) -> None:
    options = LoadOptions(n_ctx=given, need_ctx=lambda tokenizer: need)
    assert load(tmp_path, f"context = {context}\n{GOOD}", options).n_ctx == n_ctx


def test_a_context_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="n_ctx is 0; it must be a whole number from 1"):
        load(tmp_path, GOOD, LoadOptions(n_ctx=0))


def test_a_toy_made_in_python_describes_itself() -> None:
    described = Toy(AB).describe()
    assert described["file"] is None
    assert described["devices"] == ["virtual"]
