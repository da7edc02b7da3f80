"""A result file is written whole or not at all, and refused before the work."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from specx.errors import UsageError
from specx.output import OutputFile


def test_a_new_file_is_not_there_before_it_is_written(tmp_path: Path) -> None:
    output = OutputFile(tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []
    output.write("héllo\n")
    assert (tmp_path / "a.json").read_bytes() == "héllo\n".encode()
    assert list(tmp_path.iterdir()) == [tmp_path / "a.json"]


@pytest.mark.parametrize("place", ["no/such/a.json", "folder"])
def test_places_that_hold_no_file_are_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="cannot write -o .*; choose another path"):
        OutputFile(tmp_path / place)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("device", ["/dev/full", "/dev/null"])
def test_a_link_to_a_device_is_refused(tmp_path: Path, device: str) -> None:
    link = tmp_path / "a.json"
    link.symlink_to(device)
    with pytest.raises(UsageError, match=r"-o .*a\.json: it is not a regular file"):
        OutputFile(link)
    assert link.is_symlink()


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_stays_one_and_keeps_its_ending(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("old")
    link = tmp_path / "a.json"
    link.symlink_to(tmp_path / "data.txt")
    output = OutputFile(link)
    output.write("new")
    assert output.ending == ".json"
    assert link.is_symlink()
    assert (tmp_path / "data.txt").read_text() == "new"


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "a.json"
    link.symlink_to(link)
    try:
        output = OutputFile(link)
    except UsageError as error:
        assert "broken link" in str(error)  # noqa: PT017 - newer Pythons follow it to itself
    else:
        output.write("x")
        assert link.read_text() == "x"


def test_a_write_protected_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for anyone but root
    with pytest.raises(UsageError, match="write-protected"):
        OutputFile(path)


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_permissions_are_those_of_the_old_file_or_of_any_new_one(tmp_path: Path) -> None:
    path, new, plain = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c"
    path.write_text("old")
    path.chmod(0o600)
    plain.touch()
    for each in (path, new):
        OutputFile(each).write("new")
    assert path.stat().st_mode & 0o777 == 0o600
    assert new.stat().st_mode == plain.stat().st_mode


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    output = OutputFile(path)
    monkeypatch.setattr(os, step, full)
    with pytest.raises(UsageError, match="No space left"):
        output.write("new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_found_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match=r"a\.json: No space left on device"):
        OutputFile(tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []
