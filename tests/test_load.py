"""What a backend is told of the two models that it loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from specx.cli.load import FIELDS, load_pair, plan_sides
from specx.cli.progress import Progress
from specx.runtime.backend import LoadOptions
from specx_backends.toy import Toy, ToyFactory

TABLES = Path(__file__).parent.parent / "models" / "toy"


def test_a_backend_is_told_which_model_only_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, bool] = {}
    load = ToyFactory.load

    def listen(self: ToyFactory, model: str, options: LoadOptions) -> Toy:
        told[Path(model).stem] = options.drafts
        return load(self, model, options)

    monkeypatch.setattr(ToyFactory, "load", listen)
    verifier, drafter = (str(TABLES / f"{name}.toml") for name in ("verifier", "drafter"))
    sides = plan_sides(verifier, drafter, "toy", None, dict.fromkeys(FIELDS))
    with load_pair(sides, lambda _: 16, verbose=False, cached=True, progress=Progress(False)):
        assert told == {"verifier": False, "drafter": True}
