"""Reading of a comparison's file: checks that all its tables print is present and well typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypedDict

from specx.codec import Chance, Count, Gamma, Number, Rate, convert, read_json
from specx.errors import UsageError
from specx.records.trace.records import SweepInterval
from specx.schedule.costs.curve import ProfileRecord

__all__ = ["FORMAT", "read_comparison"]

FORMAT = 1
REMEDY = "specx compare -o FILE.json writes a comparison"


class _Plain(TypedDict):
    tok_s: Rate


class _Speculative(SweepInterval):
    tok_s: Rate
    speedup: Rate
    speedup_low: Rate
    speedup_high: Rate
    alpha: Chance
    kept: Chance
    tau: Rate
    alpha_by_position: list[Chance]


class _Side(TypedDict):
    name: str
    plain: _Plain
    speculative: _Speculative
    profile: ProfileRecord


_Round = TypedDict(
    "_Round",
    {"tokens": Rate, "pass": Rate, "draft": Rate, "core": Rate, "rollback": Rate},
)


class _Mean(TypedDict):
    top1: Chance | None
    total_variation: Chance | None
    kl: Rate | None
    kl_infinite: Count


class _Bin(_Mean):
    first: Count
    last: Count


class _Agreement(TypedDict):
    mean: _Mean
    bins: list[_Bin]


class _Total(TypedDict):
    nats: Number
    factor: Rate


class _Term(_Total):
    share: Rate


class _Predicted(TypedDict):
    a: Rate
    b: Rate


class _Split(TypedDict):
    algorithm: _Term
    runtime: _Term
    rest: _Term
    total: _Total
    predicted: _Predicted


class _Verdict(TypedDict):
    words: str


class _Warning(TypedDict):
    text: str
    remedy: str


class _Comparison(TypedDict):
    gamma: Gamma
    n: Count
    planned: Count
    blocks: Count
    complete: bool
    sides: dict[Literal["a", "b"], _Side]
    round: dict[Literal["a", "b"], _Round]
    agreement: dict[str, _Agreement | None]
    split: _Split
    verdict: _Verdict
    provenance: dict[str, Any]
    warnings: list[_Warning]


def read_comparison(path: Path) -> dict[str, Any]:
    """Read a JSON file of `specx compare`.

    Raises
    ------
    UsageError
        If it cannot be read or is not such a file; the message names the field.
    """
    record = read_json(path, "the comparison", REMEDY)
    if not isinstance(record, dict) or record.get("specx_compare") != FORMAT:
        raise UsageError(f"{path} is not a result of this specx compare; {REMEDY}")
    found = convert(record, _Comparison, str(path), REMEDY)
    for name in ("sides", "round"):
        if set(found[name]) != {"a", "b"}:
            raise UsageError(f"{path}: field {name}: both sides, a and b, are needed; {REMEDY}")
    for key, side in found["sides"].items():
        side["profile"].profile(f"{path}: sides.{key}.profile", REMEDY)
    return record
