"""A probability table as a model: known truth for tests and for teaching.

The next token's probabilities are read from a table; time is virtual and passes only by the costs
that the table states. A table is a TOML file. Every key but `vocabulary` and `row` may be left out;
the example shows the default where it says so::

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

import hashlib
import math
import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from specx.backend import (
    BackendFactory,
    Clock,
    LoadOptions,
    Rollback,
    Tokenizer,
    reject_unsupported,
)
from specx.errors import BackendError, ContextError, ModelError, OptionError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "CLOCK",
    "Toy",
    "ToyFactory",
    "ToyTable",
    "ToyTokenizer",
    "VirtualClock",
    "backend",
    "parse_table",
]

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
MOST_BYTES = 64 * 2**20  # a model's weights given by mistake are refused before they are read
SUM_TOLERANCE = 1e-6
DEFAULT_CONTEXT = 4096

Kind = TypeVar("Kind")


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


class Toy:
    """A `specx.backend.LogitsBackend` over a `ToyTable`.

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
        self.tokenizer: Tokenizer = ToyTokenizer(table, name)
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
        self._check_forward(tokens, n_logits)
        self._past.extend(int(token) for token in tokens)
        CLOCK.advance(self._table.forward_seconds(len(tokens)))
        ends = range(self.n_past - n_logits + 1, self.n_past + 1)
        rows = [self._row(end) for end in ends]
        return np.array(rows, np.float32).reshape(n_logits, self.n_vocab)

    def truncate(self, n_past: int) -> None:
        """Forget everything from absolute position `n_past` on."""
        self._check_open()
        if n_past == self.n_past:
            return
        self._check_truncate(n_past)
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

    def __enter__(self) -> Toy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _row(self, end: int) -> NDArray[np.float32]:
        """Logits of what follows the first `end` tokens: the longest listed context's."""
        lengths = range(min(self._table.order, end), -1, -1)
        contexts = (tuple(self._past[end - length : end]) for length in lengths)
        return next(self._logits[c] for c in contexts if c in self._logits)

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError(f"{self.name} is closed; load it again")

    def _check_forward(self, tokens: Sequence[int], n_logits: int) -> None:
        if len(tokens) == 0:
            raise BackendError(f"{self.name}: no tokens to feed; give at least one")
        if not 0 <= n_logits <= len(tokens):
            raise BackendError(f"{self.name}: n_logits is {n_logits}; give 0 to {len(tokens)}")
        strange = [token for token in tokens if not 0 <= token < self.n_vocab]
        if strange:
            raise BackendError(f"{self.name} has no token {strange[0]}; ids end at {self.n_vocab}")
        if self.n_past + len(tokens) > self.n_ctx:
            raise ContextError(
                f"{self.name}: {self.n_past} + {len(tokens)} tokens do not fit into a context of "
                f"{self.n_ctx}; load it with a larger one"
            )

    def _check_truncate(self, n_past: int) -> None:
        if not 0 <= n_past < self.n_past:
            raise BackendError(f"{self.name}: cannot truncate {self.n_past} tokens to {n_past}")
        kept = {"native": 0, "checkpoint": self._checkpoint, "none": None}[self.rollback]
        if n_past > 0 and (kept is None or n_past < kept):
            last = "none" if kept is None else f"at {kept}"
            raise BackendError(
                f"{self.name}: cannot go back to {n_past} (rollback = '{self.rollback}', "
                f"last checkpoint: {last}); call checkpoint() there first"
            )


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
        reject_unsupported(self, options)
        content = _content(Path(model))
        try:
            table = parse_table(tomllib.loads(content.decode()))
        except ModelError as error:
            raise ModelError(f"{model}: {error}") from None
        except (ValueError, RecursionError) as error:  # not UTF-8, or not TOML
            raise ModelError(f"{model}: not a TOML table ({error}); {REMEDY}") from None
        name = f"toy:{Path(model).name}"
        n_ctx = _n_ctx(table, options, ToyTokenizer(table, name))
        return Toy(table, n_ctx=n_ctx, name=name, source=_facts(model, content))

    def about(self) -> Mapping[str, object]:
        """What a toy runs on."""
        return {"python": platform.python_version(), "numpy": np.__version__}


REMEDY = "its format is described by: python -m pydoc specx_backends.toy"


def _content(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        _demand(size <= MOST_BYTES, f"{path}: {size} bytes are no TOML table; {REMEDY}")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}; give the path of a TOML table") from None


def _n_ctx(table: ToyTable, options: LoadOptions, tokenizer: Tokenizer) -> int:
    if options.n_ctx is None:
        need = options.need_ctx(tokenizer) if options.need_ctx else 0
        return min(table.context, max(DEFAULT_CONTEXT, need))
    if options.n_ctx < 1:
        raise OptionError(f"n_ctx is {options.n_ctx}; give 1 or more")
    return options.n_ctx


def _facts(model: str, content: bytes) -> dict[str, object]:
    sha256 = hashlib.sha256(content).hexdigest()
    return {"file": model, "bytes": len(content), "sha256": sha256}


backend: BackendFactory = ToyFactory()
