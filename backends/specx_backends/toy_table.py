"""The probability table of a toy: a TOML file.

Every key but `vocabulary` and `row` may be left out; the example shows the default where it says
so::

    vocabulary = ["<s>", "</s>", "<|user|>", "the", " cat", " dog", " sat", "<0xE2>"]
    bos = "<s>"                 # put first by encode(add_special=True); default none
    eog = ["</s>"]              # these end a generation, the first is the eos; default none
    control = ["<|user|>"]      # further control tokens; default none
    padding = 2                 # ids with no token behind them (here 8 and 9); default 0
    context = 512               # positions the model has; default 4096
    rollback = "native"         # or "checkpoint" or "none"; default "native"
    chat_template = "{{ messages[0].content }}"         # default none

    [cost]                      # seconds on the virtual clock
    forward = [0.010, 0.012]    # T(1), T(2); the last step goes on: T(3) = 0.014; default [0.01]
    truncate = 0.001            # default 0

    [[row]]                     # the row without `after` serves every context not listed
    next = { the = 0.75, "</s>" = 0.25 }

    [[row]]
    after = ["the"]
    next = { " cat" = 0.5, " dog" = 0.5 }

    [[row]]
    after = ["the", " cat"]
    [row.next]                  # the same thing over several lines
    " sat" = 1.0

Tokens. A token is its text; ``<0xE2>`` is the one byte E2. The tokens named by `bos`, `eog` and
`control` print nothing, and are read from a text only with ``parse_special``. A text is encoded
from left to right, by the longest token that fits.

Rows. `next` gives probabilities; a token that is not named has 0 (a logit of -inf). A row sums to 1
within 1e-6, unless it holds a `nan` (a broken model, for tests). The row whose `after` is the
longest match to the end of the sequence holds, so the longest `after` is the order of the table.
Logits are the logarithms, in float32. Padding ids get the logit 0, as high as a certain token's:
who forgets to mask them will see it.

Rollback. With "checkpoint" a truncation returns to the last checkpoint or later, with "none" it
never does. To position 0 it always does: an empty sequence needs no memory of the past.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from specx.errors import ModelError
from specx.runtime.backend import Rollback

__all__ = ["ToyTable", "parse_table"]

SUM_TOLERANCE = 1e-6

Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True)
class ToyTable:
    """What a table file holds; see the module's docstring for the meaning of each field.

    Parameters
    ----------
    tokens
        Text of each token; its index is its id.
    rows
        Probabilities of every token, keyed by the ids of the context; the key ``()`` is needed.
    bos, eog, control
        Texts of control tokens.
    forward_cost
        Seconds of a forward of 1, 2, ... tokens; the last difference is extrapolated.
    truncate_cost
        Seconds of a truncation that forgets something.

    Raises
    ------
    ModelError
        If the fields contradict each other; the message names the field, the value and the remedy.
    """

    tokens: tuple[str, ...]
    rows: Mapping[tuple[int, ...], Sequence[float]]
    bos: str | None = None
    eog: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    padding: int = 0
    context: int = 4096
    rollback: Rollback = "native"
    chat_template: str | None = None
    forward_cost: tuple[float, ...] = (0.01,)
    truncate_cost: float = 0.0
    order: int = field(init=False)

    def __post_init__(self) -> None:
        _check_tokens(self)
        _check_sizes(self)
        _check_costs(self)
        for context, row in self.rows.items():
            _check_row(self, context, row)
        _demand(() in self.rows, "no row without 'after'; add one for every context not listed")
        object.__setattr__(self, "order", max(map(len, self.rows)))

    @property
    def n_vocab(self) -> int:
        """Width of a row of logits, padding included."""
        return len(self.tokens) + self.padding

    @property
    def control_texts(self) -> frozenset[str]:
        """Texts of all tokens that print nothing."""
        bos = () if self.bos is None else (self.bos,)
        return frozenset((*bos, *self.eog, *self.control))

    def forward_seconds(self, n_tokens: int) -> float:
        """Cost of a forward of `n_tokens`, in seconds."""
        beyond = n_tokens - len(self.forward_cost)
        if beyond <= 0:
            return self.forward_cost[n_tokens - 1]
        return self.forward_cost[-1] + beyond * _last_step(self.forward_cost)

    def logits(self, context: tuple[int, ...]) -> NDArray[np.float32]:
        """The row listed for `context` as logits of shape (n_vocab,)."""
        probabilities = np.ones(self.n_vocab)
        probabilities[: len(self.tokens)] = self.rows[context]
        with np.errstate(divide="ignore"):  # a probability of 0 is meant to be a logit of -inf
            return np.log(probabilities).astype(np.float32)


def _last_step(costs: Sequence[float]) -> float:
    return costs[-1] - costs[-2] if len(costs) > 1 else 0.0


def _demand(holds: bool, complaint: str) -> None:
    if not holds:
        raise ModelError(complaint)


def _check_tokens(table: ToyTable) -> None:
    tokens = set(table.tokens)
    _demand(bool(tokens), "vocabulary is empty; list at least one token")
    _demand("" not in tokens, "vocabulary holds an empty token; give it a text")
    twice = sorted(text for text, n in Counter(table.tokens).items() if n > 1)
    _demand(not twice, f"vocabulary lists {twice} more than once; list each token once")
    unknown = table.control_texts - tokens
    _demand(
        not unknown,
        f"bos, eog or control name {sorted(unknown)}, not in vocabulary; add what is missing",
    )


def _check_sizes(table: ToyTable) -> None:
    _demand(table.padding >= 0, f"padding is {table.padding}; give 0 or more")
    _demand(table.context >= 1, f"context is {table.context}; give 1 or more")
    kinds = get_args(Rollback)
    _demand(table.rollback in kinds, f"rollback is {table.rollback!r}; give one of {list(kinds)}")


def _check_costs(table: ToyTable) -> None:
    costs = table.forward_cost
    _demand(bool(costs), "cost.forward is empty; list the seconds for 1, 2, ... tokens")
    for key, seconds in [("forward", c) for c in costs] + [("truncate", table.truncate_cost)]:
        good = math.isfinite(seconds) and seconds >= 0
        _demand(good, f"cost.{key} holds {seconds}; give finite seconds, 0 or more")
    _demand(
        _last_step(costs) >= 0,
        f"cost.forward falls at its end, {costs[-2:]}, and would be continued below 0; "
        "let the last be the largest",
    )


def _check_row(table: ToyTable, context: tuple[int, ...], row: Sequence[float]) -> None:
    n_tokens = len(table.tokens)
    _demand(
        all(0 <= token < n_tokens for token in context),
        f"row after ids {list(context)} names an id outside 0..{n_tokens - 1}; use ids of tokens",
    )
    where = f"row after {[table.tokens[token] for token in context]}"
    _demand(len(row) == n_tokens, f"{where} has {len(row)} entries; give {n_tokens}, one a token")
    _demand(not any(p < 0 for p in row), f"{where} holds {min(row)}; probabilities are 0 or more")
    total = math.fsum(row)
    good = math.isnan(total) or abs(total - 1) <= SUM_TOLERANCE
    _demand(good, f"{where} sums to {total:.9g}; make its probabilities sum to 1")


def _expect(key: str, value: object, kind: type[Kind], words: str) -> Kind:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ModelError(f"{key} is {value!r}; give {words}")
    return value


def _text(key: str, value: object) -> str:
    return _expect(key, value, str, "a string")


def _whole(key: str, value: object) -> int:
    return _expect(key, value, int, "a whole number")


def _number(key: str, value: object) -> float:
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _expect(key, value, float, "a number (and quote a token that holds a dot)")


def _texts(key: str, value: object) -> tuple[str, ...]:
    return tuple(_text(key, text) for text in _expect(key, value, list, "a list of strings"))


def _numbers(key: str, value: object) -> tuple[float, ...]:
    return tuple(_number(key, item) for item in _expect(key, value, list, "a list of numbers"))


def _table(key: str, value: object) -> dict[str, object]:
    return _expect(key, value, dict, f"a table, [{key}]")


def _tables(key: str, value: object) -> list[dict[str, object]]:
    return [_table(key, item) for item in _expect(key, value, list, f"tables headed [[{key}]]")]


Schema = Mapping[str, Callable[[str, object], object]]

TABLE: Schema = {
    "vocabulary": _texts,
    "bos": _text,
    "eog": _texts,
    "control": _texts,
    "padding": _whole,
    "context": _whole,
    "rollback": _text,
    "chat_template": _text,
    "cost": _table,
    "row": _tables,
}
COST: Schema = {"forward": _numbers, "truncate": _number}
ROW: Schema = {"after": _texts, "next": _table}


def _read(prefix: str, source: Mapping[str, object], schema: Schema) -> dict[str, Any]:
    """The values of `source`, each of the kind that `schema` says; Any, since checked here."""
    for key in source:
        known = ", ".join(prefix + name for name in schema)
        _demand(key in schema, f"unknown key '{prefix}{key}'; known: {known}")
    return {key: schema[key](prefix + key, value) for key, value in source.items()}


def _need(prefix: str, found: dict[str, Any], key: str) -> Any:
    _demand(key in found, f"'{prefix}{key}' is missing; add it")
    return found.pop(key)


def parse_table(source: Mapping[str, object]) -> ToyTable:
    """The table in a parsed TOML document.

    Raises
    ------
    ModelError
        If a key is unknown, missing, of the wrong kind, or contradicts another.
    """
    found = _read("", source, TABLE)
    cost = _read("cost.", found.pop("cost", {}), COST)
    tokens = _need("", found, "vocabulary")
    rows = _rows(_need("", found, "row"), {text: token for token, text in enumerate(tokens)})
    costs = {f"{key}_cost": value for key, value in cost.items()}
    return ToyTable(tokens=tokens, rows=rows, **found, **costs)


def _rows(
    tables: list[dict[str, object]], ids: Mapping[str, int]
) -> dict[tuple[int, ...], list[float]]:
    rows: dict[tuple[int, ...], list[float]] = {}
    for table in tables:
        row = _read("row.", table, ROW)
        after = row.get("after", ())
        context = tuple(_id("row.after", text, ids) for text in after)
        _demand(context not in rows, f"two rows after {list(after)}; keep one")
        rows[context] = _probabilities(_need("row.", row, "next"), ids)
    return rows


def _probabilities(named: Mapping[str, object], ids: Mapping[str, int]) -> list[float]:
    row = [0.0] * len(ids)
    for text, probability in named.items():
        row[_id("row.next", text, ids)] = _number(f"row.next.{text!r}", probability)
    return row


def _id(key: str, text: str, ids: Mapping[str, int]) -> int:
    _demand(text in ids, f"{key} names {text!r}, not in vocabulary; add it there")
    return ids[text]
