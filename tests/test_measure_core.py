"""The microbenchmark's naive forms do the same work as the core's."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from specx.core.rules import RULES
from specx.core.sampling import SamplingParams, distribution

SCRIPT = Path(__file__).parent.parent / "scripts" / "measure_core.py"
SMALL = 300


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure_core", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VOCAB", SMALL)
    return module


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_naive_rule_decides_the_same(script: ModuleType, rule: str) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (script.ROWS, SMALL)).astype(np.float32)
    seen = set()
    for _ in range(200):
        block = script.block(logits, SamplingParams(temperature=1, top_p=1), rng)
        uniforms = rng.random((1, script.GAMMA + 1))
        verdict = RULES[rule](block).decide(uniforms[0, :-1], uniforms[0, -1])
        tables = [script.dense(block)] * script.BLOCKS
        assert script.NAIVE_RULES[rule](0, tables, uniforms) == (verdict.n_accepted, verdict.token)
        seen.add(verdict.n_accepted)
    assert seen == set(range(script.GAMMA + 1))


@pytest.mark.parametrize("filters", ["temperature 0.7", "top-p 0.9, temperature 0.7", "top-k 40"])
def test_the_naive_transform_gives_the_same_distribution(script: ModuleType, filters: str) -> None:
    logits = np.random.default_rng(1).normal(0, 2, SMALL).astype(np.float32)
    params = script.SAMPLINGS[filters]
    (dense,) = script.as_table([distribution(logits, params)])
    np.testing.assert_allclose(dense, script.naive_transform(logits, params), atol=1e-12)
