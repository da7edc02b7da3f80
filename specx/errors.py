"""Everything specx raises on purpose.

SpecxError                  one line that names the value and the remedy; exit code 2
├── UsageError              the caller's input: an option, a prompt, a file that cannot be written
├── ModelError              a model that is missing, damaged, or not what it is said to be
│   ├── VocabularyError     drafter and verifier do not share a vocabulary
│   └── LogitsError         the model returned NaN or nothing but -inf
├── BackendError            a runtime that is unknown, not installed, or that failed
│   └── OptionError         an option this runtime cannot honour
└── ContextError            the context or the memory is too small for what was asked
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
    """A model is missing, damaged, or not what it is said to be."""


class VocabularyError(ModelError):
    """Drafter and verifier do not share a vocabulary."""


class LogitsError(ModelError):
    """A model returned logits from which no distribution follows."""


class BackendError(SpecxError):
    """A runtime is unknown, not installed, or failed."""


class OptionError(BackendError):
    """A runtime was given an option that it cannot honour."""


class ContextError(SpecxError):
    """The context or the memory is too small for what was asked."""


def is_whole(value: object) -> TypeGuard[int]:
    """Whether `value` is a whole number, Python's or NumPy's; a bool answers another question."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """`value` as an int, if it is a whole number of `least` or more; NumPy's count too.

    Raises
    ------
    UsageError
        Otherwise; names the argument `name` and the value.
    """
    if is_whole(value) and least <= value and (most is None or value <= most):
        return int(value)
    upper = " or more" if most is None else f" to {most}"
    raise UsageError(f"{name} is {value!r}; it must be a whole number, {least}{upper}")
