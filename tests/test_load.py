"""What a backend is told of the two models that it loads."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from specx.cli.load import FIELDS, load_pair, plan_sides
from specx.cli.progress import Progress
from specx.errors import ContextError
from specx.runtime.backend import LoadOptions
from specx.runtime.memory import MemoryNeeded
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


def test_caches_of_all_models_are_counted_together_before_the_first_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, int | None]] = []

    def needed(self: ToyFactory, model: str, options: LoadOptions) -> MemoryNeeded | None:
        asked.append((Path(model).stem, options.n_ctx))
        return MemoryNeeded(name=model, n_ctx=options.n_ctx or 0, bytes_per_position=share)

    def loaded(self: ToyFactory, model: str, options: LoadOptions) -> Toy:
        pytest.fail("it was loaded")

    monkeypatch.setattr(ToyFactory, "memory_needed", needed, raising=False)
    monkeypatch.setattr(ToyFactory, "load", loaded)
    share = 0.7 * psutil.virtual_memory().total / 300  # one alone fits into an idle machine
    verifier, drafter = (str(TABLES / f"{name}.toml") for name in ("verifier", "drafter"))
    sides = plan_sides(verifier, drafter, "toy", None, {**dict.fromkeys(FIELDS), "n_ctx": 300})
    with pytest.raises(ContextError, match=r"verifier.* at 300 .* and .*drafter.* at 300 "):
        load_pair(sides, lambda _: 16, verbose=False, cached=True, progress=Progress(False))
    assert asked == [("verifier", 300), ("drafter", 300)]
