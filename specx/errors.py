"""Everything specx raises on purpose.

SpecxError                  one line that names the value and the remedy; exit code 2
├── UsageError              the caller's input: an option, a prompt, a file that cannot be written
├── ModelError              a model that is missing, damaged, or not as described
│   ├── VocabularyError     drafter and verifier do not share a vocabulary
│   └── LogitsError         the model returned NaN or nothing but -inf
├── BackendError            a runtime that is unknown, not installed, or that failed
│   └── OptionError         an option this runtime does not support
└── ContextError            the context or the memory is too small for the request
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, TypeGuard

__all__ = [
    "BackendError",
    "ContextError",
    "LogitsError",
    "ModelError",
    "OptionError",
    "SpecxError",
    "UsageError",
    "VocabularyError",
    "is_whole",
    "whole_number",
]


class SpecxError(Exception):
    """Base of all errors that specx raises on purpose."""


class UsageError(SpecxError):
    """The caller's input cannot be used as it is."""


class ModelError(SpecxError):
    """A model is missing, damaged, or not as described."""


class VocabularyError(ModelError):
    """Drafter and verifier do not share a vocabulary."""


class LogitsError(ModelError):
    """A model returned logits that do not define a distribution."""


class BackendError(SpecxError):
    """A runtime is unknown, not installed, or failed."""


class OptionError(BackendError):
    """A runtime was given an option that it does not support."""


class ContextError(SpecxError):
    """The context or the memory is too small for the request."""


def is_whole(value: object) -> TypeGuard[int]:
    """True if `value` is a whole number, Python's or NumPy's, but not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """`value` as an int, if it is a whole number, Python's or NumPy's, of at least `least`.

    Raises
    ------
    UsageError
        Otherwise; names the argument `name` and the value.
    """
    if is_whole(value) and least <= value and (most is None or value <= most):
        return int(value)
    upper = " or more" if most is None else f" to {most}"
    raise UsageError(f"{name} is {value!r}; it must be a whole number, {least}{upper}")
