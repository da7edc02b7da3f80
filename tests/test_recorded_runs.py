"""What 40 runs wrote before the session was built in; not a token, round or name may change."""

import json
from importlib.util import find_spec

import pytest

from record_runs import RECORDED, RUNS, record

BEFORE = dict(zip(RUNS, json.loads(RECORDED.read_text(encoding="utf-8")), strict=True))


@pytest.mark.parametrize("run", RUNS)
def test_a_run_writes_what_it_wrote_before(run: str) -> None:
    if "hf" in run and find_spec("torch") is None:
        pytest.skip("torch is not installed (extra hf)")
    assert record(run) == BEFORE[run]
