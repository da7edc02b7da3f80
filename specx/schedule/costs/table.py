"""Costs of a pair without a profile: shapes by quantisation, from ``models/costs.toml``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specx.runtime.backend import LogitsBackend
from specx.schedule.costs.curve import Curve, Profile
from specx.shipped import packaged

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["as_f16", "table_profile", "table_row"]

DEFAULT, F16, GPU = "Q8_0", "F16", "gpu"
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def table_profile(verifier: LogitsBackend, drafter: LogitsBackend | None = None) -> Profile:
    """The costs of a pair according to the table, in units of the verifier's T(1)."""
    table = _table()
    curve = _curve(table, verifier, 1.0)
    if drafter is None:
        return Profile(verifier=curve)
    share = _weight_bytes(drafter) / _weight_bytes(verifier)
    step = min(share, 1.0) ** table["drafter_exponent"]
    return Profile(verifier=curve, drafter=_curve(table, drafter, step))


def table_row(about: Mapping[str, object]) -> str:
    """The row for a model with this description.

    A model that computes in a plain type (PyTorch) is looked up by that type, whatever its file's.
    """
    devices = about.get("devices")
    names = [str(name).lower() for name in devices] if isinstance(devices, list) else []
    if any(word in name for name in names for word in ("cuda", "vulkan", "metal", "mps", "rocm")):
        return GPU
    kind = about.get("dtype") or about.get("quantisation") or DEFAULT
    return str(kind).replace(" - Medium", "_M").replace(" - Small", "_S")


def as_f16(profile: Profile, verifier: LogitsBackend) -> Profile | None:
    """What `profile` would be if its verifier were stored in F16; None if it is, or on a GPU."""
    about = verifier.describe()
    n_params, size, row = about.get("n_params"), about.get("bytes"), table_row(about)
    if not isinstance(n_params, int) or not isinstance(size, int) or row in (GPU, *ITEM_BYTES):
        return None
    if _family(row) == F16 or row.endswith("F32"):
        return None
    table = _table()
    one = profile.verifier(1) * (2 * n_params / size) ** table["drafter_exponent"]
    return replace(profile, verifier=_row(table, F16, verifier.name, one))


def _table() -> dict[str, Any]:
    return tomllib.loads(packaged("costs.toml").read_text(encoding="utf-8"))


def _curve(table: Mapping[str, Any], model: LogitsBackend, unit: float) -> Curve:
    name = table_row(model.describe())
    name = next((row for row in (name, _family(name)) if row in table), DEFAULT)
    return _row(table, name, model.name, unit)


def _row(table: Mapping[str, Any], name: str, model: str, unit: float) -> Curve:
    row = table[name]
    seconds = tuple(unit * float(cost) for cost in row["cost"])
    return Curve(
        model=model,
        bytes=None,
        quantisation=name,
        threads=None,
        n_past=0,
        repeats=0,
        widths=tuple(row["widths"]),
        seconds=seconds,
        low=seconds,
        high=seconds,
    )


def _family(name: str) -> str:
    """The measured format whose computation is the most similar."""
    if name.startswith(("F16", "BF16", "float16", "bfloat16")):
        return F16
    return "Q8_0" if name.startswith("Q8") else "Q4_K_M"


def _weight_bytes(model: LogitsBackend) -> float:
    """Bytes of the weights in the type they are computed with."""
    about = model.describe()
    item = ITEM_BYTES.get(str(about.get("dtype")))
    n_params, size = about.get("n_params"), about.get("bytes")
    if item is not None and isinstance(n_params, int):
        return float(item * n_params)
    return float(size) if isinstance(size, int) and size > 0 else 1.0
