"""A jinja2 sandbox with a budget: an untrusted template cannot hang or exhaust memory.

jinja2's own sandbox keeps a template away from Python's internals, but lets it loop for hours,
build a string of gigabytes, or raise ten to the power of a billion. Here each render has a budget:

- a body that can run more than once (of a loop, a macro, a block) pays for its size each time;
- what makes or reads a value (operator, filter, method, comparison, output) pays for the size of
  the value, *before* it is made where it can be larger than what it is made of;
- filters and methods whose cost is unknown are removed.

The count depends on the template and the messages alone, so a render that passes on one machine
passes on all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import wraps
from types import BuiltinMethodType
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

__all__ = ["Budget", "Exhausted", "Sandbox"]

MOST_SOURCE = 1 << 18
"""Characters of a template; the longest of known models have some 40,000."""
MOST_DEPTH = 64
"""Levels of nested lists."""
MOST_BITS = 1 << 16
"""Bits of a whole number."""
ELEMENT = 16
"""Cost of a list's element besides its text, in characters of text."""

METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        "capitalize casefold center count endswith find format index isalnum isalpha isascii "
        "isdecimal isdigit islower isnumeric isspace istitle isupper join ljust lower lstrip "
        "partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip "
        "split splitlines startswith strip swapcase title upper zfill".split()
    ),
    dict: frozenset("copy get items keys values".split()),
    list: frozenset("copy count index".split()),
    tuple: frozenset("count index".split()),
    int: frozenset(),
    float: frozenset(["is_integer"]),
    bytes: frozenset(),
}
"""Methods that a template may call, by type of value."""

ABSENT = frozenset("lipsum pprint random urlize wordwrap xmlattr".split())
"""Filters and globals of jinja2 that are removed: unbounded in cost, or different each run."""
GLANCES = frozenset("attr count d default first items last length list reverse safe".split())
"""Filters that use a value without reading the text within."""
LAZY = frozenset("map reject rejectattr select selectattr".split())
"""Filters that iterate over a list, calling another filter or test for each element."""
ARRANGE = frozenset("batch dictsort groupby max min slice sort unique".split())
PLAIN = frozenset("abs capitalize e escape float forceescape int lower string trim upper".split())
"""Filters that read a text once."""
COMPARE = frozenset("!= < <= == > >= eq equalto ge greaterthan gt in le lessthan lt ne".split())
"""Tests that read both sides."""


class Exhausted(BaseException):
    """The budget is spent. Not an Exception: parts of jinja2 swallow those."""


class Budget:
    """The remaining allowance of a render, in characters of text created or read."""

    def __init__(self, left: int) -> None:
        self.left = left

    def pay(self, cost: int) -> None:
        """Deduct `cost`; raise Exhausted if less is left."""
        self.left -= cost
        if self.left < 0:
            raise Exhausted("it takes more time or memory than a template is allowed")

    def hold(self, value: Any) -> int:
        """Pay for the elements of `value`, not for their text; return its length if printed."""
        return self._walk(value, 0)

    def read(self, *values: Any) -> int:
        """Pay for `values` and all text within; return the number of characters."""
        size = sum(self._walk(value, 0) for value in values)
        self.pay(size)
        return size

    def _walk(self, value: Any, depth: int) -> int:
        if isinstance(value, str):
            return len(value)
        if isinstance(value, int):
            return value.bit_length() // 3 + 1
        parts = _parts(value)
        if parts is None:
            return 32
        if depth == MOST_DEPTH:
            raise Exhausted("its lists are nested too deeply")
        self.pay(ELEMENT * len(parts))
        size = 2
        for part in parts:
            size += self._walk(part, depth + 1) + 4
            if size > self.left:
                self.pay(size)
        return size


def _parts(value: Any) -> Collection[Any] | None:
    """The elements of `value`, a container; None for anything else."""
    if isinstance(value, Namespace):
        value = object.__getattribute__(value, "_Namespace__attrs")
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    is_text = isinstance(value, (bytes, range))
    return value if isinstance(value, Collection) and not is_text else None


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment that chat templates are written for, with a `Budget`."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", Generation],
            # Constants would be folded at compile time, outside any budget.
            optimized=False,
            finalize=pass_context(lambda context, value: self._printed(value)),
        )
        self.budget = Budget(0)
        self.concat = self._concat  # type: ignore[method-assign]
        self.globals = {k: v for k, v in self.globals.items() if k not in ABSENT}
        self.globals["raise_exception"] = _refuse
        self.filters = {
            **{k: self._paid(k, v) for k, v in self.filters.items() if k not in ABSENT},
            "tojson": self._tojson,
            "_held": self._held,
            "_read": self._read,
            "_joined": self._joined,
            "_pay": self._pay,
        }
        tests: Mapping[str, Any] = self.tests
        self.tests = {name: self._paid_test(name, test) for name, test in tests.items()}

    # What the compiled template calls

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MOST_SOURCE:
            raise TemplateError(f"it has {len(source):,} characters; the limit is {MOST_SOURCE:,}")
        tree = super()._parse(source, name, filename)
        return _Metered().visit(tree)  # type: ignore[no-any-return]

    def _pay(self, cost: int) -> bool:
        self.budget.pay(cost)
        return True

    def _held(self, value: Any) -> Any:
        self.budget.pay(len(value) if isinstance(value, str) else 0)
        self.budget.hold(value)
        return value

    def _read(self, value: Any) -> Any:
        self.budget.read(value)
        return value

    def _printed(self, value: Any) -> Any:
        self.budget.read(value)
        return value

    def _joined(self, values: list[Any]) -> str:
        self.budget.read(values)
        return "".join(map(str, values))

    def _concat(self, pieces: Iterable[str]) -> str:
        kept = []
        for piece in pieces:
            self.budget.pay(len(piece) + 4)
            kept.append(piece)
        return "".join(kept)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Subscript; pay for the key, all of which is hashed."""
        self.budget.read(argument)
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow only methods of known cost on plain values."""
        known = next((names for kind, names in METHODS.items() if isinstance(obj, kind)), None)
        if isinstance(obj, type) or (known is not None and attr not in known):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Pay for the result of an operator, then apply it."""
        budget = self.budget
        if isinstance(left, str) and operator == "%":
            budget.pay(_formatted(budget, left, right))
        elif operator in ("*", "**"):
            self._pay_product(operator, left, right)
        elif operator == "+" and not isinstance(left, str):
            self._held(left)
            self._held(right)
        else:
            budget.read(left, right)
        return super().call_binop(context, operator, left, right)

    def _pay_product(self, operator: str, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length()
            bits = bits + right.bit_length() if operator == "*" else bits * max(right, 1)
            if bits > MOST_BITS:
                raise Exhausted("it computes with numbers that are too large")
        elif isinstance(left, int) or isinstance(right, int):
            times, value = (left, right) if isinstance(left, int) else (right, left)
            self.budget.pay(max(times, 0) * (self.budget.hold(value) + ELEMENT))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Pay for the result of a string method, or for the arguments of any other call."""
        method = getattr(__obj, "__wrapped__", __obj)  # str.format is wrapped by the sandbox
        owner = getattr(method, "__self__", None)
        budget = __self.budget
        if not isinstance(owner, str):
            budget.pay(ELEMENT * (1 + len(args) + len(kwargs)))
            for value in (*args, *kwargs.values()):
                budget.hold(value)
            if isinstance(method, BuiltinMethodType):  # of a list or a dictionary
                budget.read(*([owner] if isinstance(owner, (list, tuple)) else args))
            made = super().call(__context, __obj, *args, **kwargs)
            budget.hold(made)
            return made
        args = tuple(map(_settled, args))
        budget.pay(_of_method(budget, owner, method.__name__, args, kwargs))
        return super().call(__context, __obj, *args, **kwargs)

    # Filters and tests

    def _paid(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        skip = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

        @wraps(function)
        def paid(*args: Any, **kwargs: Any) -> Any:
            first, given = args[:skip], tuple(map(_settled, args[skip:]))
            cost = _of_filter(self.budget, name, given[0], given[1:], kwargs)
            self.budget.pay(cost)
            made = function(*first, *given, **kwargs)
            if not isinstance(made, Iterator):
                self.budget.hold(made)
            return made

        return paid

    def _paid_test(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        reads = name in COMPARE

        @wraps(function)
        def paid(*args: Any, **kwargs: Any) -> Any:
            if reads:
                self.budget.read(*args, *kwargs.values())
            self.budget.pay(ELEMENT)
            return function(*args, **kwargs)

        return paid

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """``tojson`` as in transformers: arguments unlike jinja2's, and no HTML escapes."""
        self.budget.read(value, separators)
        self.budget.pay(MOST_DEPTH * _width(indent))
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return self._concat(encoder.iterencode(_settled(value)))


def _refuse(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _settled(value: Any) -> Any:
    """A generator as a list, so that its size is known."""
    return list(value) if isinstance(value, Iterator) else value


def _width(*values: Any) -> int:
    """The most that numbers and texts among arguments can add to a line."""
    return sum(
        abs(value) if isinstance(value, int) else len(value)
        for value in values
        if isinstance(value, (int, str))
    )


def _formatted(budget: Budget, form: str, values: Any) -> int:
    """Upper bound on `form` with `values`: each field may hold all of them, padded as written."""
    digits = "".join(c if c.isdecimal() else " " for c in form).split()
    written = sum(int(number[:9]) for number in digits)
    taken = values if isinstance(values, tuple) else (values,)
    wide = _width(*taken) if "*" in form or "{" in form else 0  # a width among the values
    fields = form.count("%") + form.count("{")
    return len(form) + fields * (written + wide + budget.hold(values) + 64)


def _of_method(
    budget: Budget, text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> int:
    """Cost of a method of `text`."""
    given = (*args, *kwargs.values())
    size = budget.read(*given) + 4 * len(text)
    if name in ("startswith", "endswith"):
        return size - 4 * len(text)
    if name == "replace" and len(args) > 1:
        return size + _replaced(text, *args[:2])
    if name == "join" and args:
        return size + len(text) * _length(args[0])
    if name == "format":
        return size + _formatted(budget, text, given)
    if name in ("split", "rsplit", "splitlines"):
        return size + ELEMENT * _pieces(text, name, *args[:1], **kwargs)
    if name in ("center", "ljust", "rjust", "zfill"):
        return size + _width(*args)
    return size


def _pieces(text: str, name: str, sep: Any = None, **_: Any) -> int:
    if name == "splitlines" or not isinstance(sep, str):
        return 1 + len(text) // (1 if name == "splitlines" else 2)
    return 1 + text.count(sep)


def _replaced(text: str, old: Any, new: Any) -> int:
    return str(text).count(str(old)) * len(str(new))


def _length(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 1


def _of_filter(
    budget: Budget, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> int:
    """Cost of a filter on `value`."""
    given = (*args, *kwargs.values())
    width = budget.read(*given) + _width(*given)
    length = _length(value)
    if name in GLANCES:
        return ELEMENT * (length if name in ("list", "reverse") else 1) + width
    if name in LAZY:
        return ELEMENT * length * (1 + width)
    size = budget.read(value)
    if name == "sum":  # of lists, each sum is a new one
        return size * (1 + length)
    if name in ARRANGE:
        return 20 * size + ELEMENT * (length + 1) * (1 + width)
    if name == "replace":
        old, new = (*args, kwargs.get("old", ""), kwargs.get("new", ""))[:2]
        return size + _replaced(str(value), old, new)
    if name == "join":
        return size + width * length
    if name == "format":
        return _formatted(budget, str(value), given)
    if name == "indent":
        return size + (str(value).count("\n") + 1) * (width + 4)
    if name == "round":  # ten to the power of the digits asked for
        return size + width**2
    if name in PLAIN:
        return 4 * size + width
    return ELEMENT * size * (1 + width)


class Generation(Extension):
    """``{% generation %}...{% endgeneration %}``: marks an answer for training; prints its body."""

    tags = {"generation"}  # noqa: RUF012  # jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        """The body, in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Metered(NodeTransformer):
    """Inserts payments into a parsed template where jinja2 has no hook."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        size = _size(node)
        self.generic_visit(node)
        node.body.insert(0, _payment(size))
        if node.test is not None:
            node.test = nodes.And(_filter(nodes.Const(size), "_pay"), node.test)
        return node

    def _many(self, node: Any) -> nodes.Node:
        size = _size(node)
        self.generic_visit(node)
        node.body.insert(0, _payment(size))
        return node  # type: ignore[no-any-return]

    visit_Macro = visit_CallBlock = visit_Block = _many

    def _literal(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else _filter(node, "_held")

    visit_List = visit_Tuple = _literal

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _filter(pair.key, "_read")
        return _filter(node, "_held")

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "_joined")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filter(node.expr, "_read")
        for operand in node.ops:
            operand.expr = _filter(operand.expr, "_read")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filter(node.node, "_held")
        return node


def _size(node: nodes.Node) -> int:
    return sum(1 for _ in node.find_all(nodes.Node))


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _payment(size: int) -> nodes.ExprStmt:
    return nodes.ExprStmt(_filter(nodes.Const(size, lineno=1), "_pay"), lineno=1)
