"""What is told of the machine and the models."""

from __future__ import annotations

import hashlib
import json
import os
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from specx.runtime import machine
from specx.runtime.machine import Watch, provenance
from specx_backends.toy import Toy, ToyTable

TABLE = ToyTable(tokens=("a",), rows={(): (1.0,)})
CpuTimes = namedtuple("CpuTimes", "user nice system idle iowait irq softirq")


def model(path: Path, **more: object) -> Toy:
    return Toy(TABLE, source={"file": str(path), **more})


def files(folder: Path, *sizes: int) -> list[Path]:
    paths = [folder / f"{place}.gguf" for place in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(os.urandom(size))
    return paths


def test_models_are_hashed_and_named_without_their_folder(tmp_path: Path) -> None:
    big, small = files(tmp_path, 3000, 10)
    found = provenance({"verifier": model(big), "drafter": model(small)}, ["toy"], [])
    for role, path in (("verifier", big), ("drafter", small)):
        about = found["models"][role]
        assert about["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert about["file"] == path.name
    assert str(tmp_path) not in json.dumps(found)


def test_a_hash_that_the_runtime_tells_is_kept(tmp_path: Path) -> None:
    (path,) = files(tmp_path, 10)
    shares: list[float] = []
    known = provenance({"verifier": model(path, sha256="told")}, [], [], shares.append)
    assert known["models"]["verifier"]["sha256"] == "told"
    assert shares == []


def test_a_model_that_is_no_file_has_no_hash(tmp_path: Path) -> None:
    found = provenance({"verifier": Toy(TABLE), "drafter": model(tmp_path)}, [], [])
    assert all(about.get("sha256") is None for about in found["models"].values())


def test_hashing_reports_the_share_of_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "CHUNK", 100)
    big, small = files(tmp_path, 300, 100)
    shares: list[float] = []
    provenance({"verifier": model(big), "drafter": model(small)}, [], [], shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_a_file_that_is_both_models_is_hashed_once(tmp_path: Path) -> None:
    (path,) = files(tmp_path, 10)
    shares: list[float] = []
    found = provenance({"verifier": model(path), "drafter": model(path)}, [], [], shares.append)
    assert shares == [1.0]
    assert found["models"]["verifier"]["sha256"] == found["models"]["drafter"]["sha256"]


def test_it_says_what_ran_where(tmp_path: Path) -> None:
    found = provenance({}, ["toy", "toy"], ["bench", "-m", str(tmp_path / "m.gguf"), "-n", "4"])
    assert found["argv"] == ["bench", "-m", "m.gguf", "-n", "4"]
    assert set(found["versions"]) == {"specx", "python", "numpy"}
    assert list(found["backends"]) == ["toy"]
    assert set(found["machine"]) >= {"system", "processor", "logical_cores", "memory_gib"}
    assert json.loads(json.dumps(found)) == found


@pytest.mark.skipif(os.name == "nt", reason="the system's counters have other names there")
def test_a_watch_tells_other_programs_from_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 seconds of the cores 60 were busy; 30 of them were this process's."""
    before, after = CpuTimes(70, 5, 20, 90, 10, 3, 2), CpuTimes(110, 5, 30, 125, 15, 8, 7)
    own = [os.times_result((4, 1, 3, 2, 99)), os.times_result((20, 9, 6, 5, 199))]
    monkeypatch.setattr(psutil, "cpu_times", iter([before, after]).__next__)
    monkeypatch.setattr(os, "times", iter(own).__next__)
    assert Watch().others() == pytest.approx(0.3)


def test_a_watch_counts_what_is_swapped_out_since_it_was_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counters = iter([SimpleNamespace(sout=5 * 2**20), SimpleNamespace(sout=25 * 2**20)])
    monkeypatch.setattr(psutil, "swap_memory", counters.__next__)
    assert Watch().swapped_mib() == 20


def test_peak_memory_holds_at_least_what_is_held_now() -> None:
    assert machine.peak_memory_mib() >= 0.9 * psutil.Process().memory_info().rss / 2**20
