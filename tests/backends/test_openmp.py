"""How long threads spin is set before a runtime's OpenMP library reads the environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from specx_backends.openmp import SPINS, spin_briefly

DOORS = {
    "llamacpp": "from specx_backends.llamacpp_library import library; library()",
    "hf": "from specx_backends.hf_library import require; require('torch')",
}
OWN = [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}]


@pytest.mark.parametrize("environ", OWN)
def test_the_users_own_setting_wins(environ: dict[str, str]) -> None:
    before = dict(environ)
    spin_briefly(environ)
    assert environ == before


def test_without_one_threads_spin_briefly() -> None:
    environ: dict[str, str] = {}
    spin_briefly(environ)
    assert environ == {"GOMP_SPINCOUNT": SPINS}


@pytest.mark.skipif(sys.platform != "linux", reason="the libraries of other systems differ")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("own", "seen"), [(None, SPINS), ("7", "7")])
def test_the_library_itself_sees_the_setting(door: str, own: str | None, seen: str) -> None:
    """libgomp prints what it read when it was loaded, be it by another package before."""
    if door == "hf":
        pytest.importorskip("torch")
    environ = {
        k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    environ |= {"OMP_DISPLAY_ENV": "verbose", **({"GOMP_SPINCOUNT": own} if own else {})}
    code = f"import specx, specx.cli; {DOORS[door]}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    found = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    if not found:
        pytest.skip("this runtime was built without libgomp")
    assert set(found) == {seen}
