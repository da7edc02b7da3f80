"""Downloads: resumed, verified, one line where they fail, and nothing outside of the cache."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest
import tiny_gguf
from hub import COMMIT, Hub, environment, serving, use

from specx.cli import main
from specx.errors import ModelError, UsageError
from specx.library import download
from specx.library.hub import HubFile, hub_name
from specx.library.names import Known, resolve
from specx.library.pull import pull

REPO, NAME = "maker/tiny-GGUF", "hf:maker/tiny-GGUF:tiny.gguf"
TINY = HubFile(REPO, "tiny.gguf")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_gguf.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf").read_bytes()


@pytest.fixture
def hub(model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one model, which this process uses."""
    with serving() as hub:
        hub.files[f"{REPO}/tiny.gguf"] = model
        use(hub, tmp_path, monkeypatch)
        yield hub


class Done(NamedTuple):
    code: object
    out: str
    err: str


Specx: TypeAlias = Callable[..., Done]


@pytest.fixture
def specx(capsys: pytest.CaptureFixture[str]) -> Specx:
    def run(*args: str) -> Done:
        with pytest.raises(SystemExit) as exit_:
            main(args)
        return Done(exit_.value.code, *capsys.readouterr())

    return run


def refused(done: Done, *words: str) -> None:
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("specx: ")
    assert done.err.count("\n") == 1, done.err
    for word in words:
        assert word in done.err


def blobs(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "hf" / "hub").glob("models--*/blobs/*"))


# Whole downloads


def test_what_was_pulled_is_the_file_in_the_place_of_the_hubs_own_tools(
    hub: Hub, specx: Specx, model: bytes, tmp_path: Path
) -> None:
    done = specx("pull", NAME)
    path = Path(done.out.rstrip("\n"))
    assert (done.code, done.err) == (0, "")
    assert path.read_bytes() == model
    from huggingface_hub import hf_hub_download

    assert hf_hub_download(REPO, "tiny.gguf", local_files_only=True) == str(path)
    digest = hashlib.sha256(model).hexdigest()
    assert [blob.name for blob in blobs(tmp_path)] == [digest]
    assert json.loads((tmp_path / "cache" / "downloads.json").read_text()) == {NAME: digest}


def test_what_is_there_is_verified_without_the_network(
    hub: Hub, specx: Specx, tmp_path: Path
) -> None:
    first = specx("pull", NAME)
    hub.requests.clear()
    assert specx("pull", NAME) == first
    assert hub.requests == []


def test_what_another_tool_downloaded_is_used(hub: Hub, specx: Specx) -> None:
    from huggingface_hub import hf_hub_download

    path = hf_hub_download(REPO, "tiny.gguf")
    hub.requests.clear()
    assert specx("pull", NAME).out == f"{path}\n"
    assert hub.requests == []


def test_damage_on_this_machine_is_repaired(
    hub: Hub, specx: Specx, model: bytes, tmp_path: Path
) -> None:
    path = Path(specx("pull", NAME).out.rstrip("\n"))
    blobs(tmp_path)[0].write_bytes(bytes([model[0] ^ 1]) + model[1:])
    assert specx("pull", NAME).code == 0
    assert path.read_bytes() == model


def test_damage_in_a_cache_without_links_is_repaired(hub: Hub, specx: Specx, model: bytes) -> None:
    path = Path(specx("pull", NAME).out.rstrip("\n"))
    path.unlink()
    path.write_bytes(bytes([model[0] ^ 1]) + model[1:])
    assert specx("pull", NAME).code == 0
    assert path.read_bytes() == model
    path.unlink()
    path.write_bytes(model)
    hub.files[f"{REPO}/tiny.gguf"] = model + b"new"
    hub.commit = COMMIT[::-1]
    assert specx("pull", "--update", NAME).code == 0
    assert path.read_bytes() == model


def test_all_files_of_a_model_come_along(hub: Hub, specx: Specx, model: bytes) -> None:
    parts = [f"{REPO}/sub/m-0000{part}-of-00002.gguf" for part in (1, 2)]
    hub.files |= {parts[0]: model, parts[1]: model[:-1]}
    done = specx("pull", "hf:maker/tiny-GGUF:sub/m-00002-of-00002.gguf")
    path = Path(done.out.rstrip("\n"))
    assert path.name == "m-00001-of-00002.gguf"
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "m-00001-of-00002.gguf", "m-00002-of-00002.gguf",
    ]  # fmt: skip


def test_update_takes_what_the_branch_has_now(hub: Hub, specx: Specx, model: bytes) -> None:
    old = Path(specx("pull", NAME).out.rstrip("\n"))
    hub.files[f"{REPO}/tiny.gguf"] = model + b"new"
    hub.commit = COMMIT[::-1]
    assert specx("pull", NAME).out == f"{old}\n"
    new = Path(specx("pull", "--update", NAME).out.rstrip("\n"))
    assert new.read_bytes() == model + b"new"
    assert specx("pull", NAME).out == f"{new}\n"
    assert old.read_bytes() == model


def test_a_repository_of_safetensors_is_one_model(
    hub: Hub, specx: Specx, tiny_llama: Path, tmp_path: Path
) -> None:
    files = {path.name: path.read_bytes() for path in tiny_llama.iterdir()}
    copies = {"original/model.safetensors": b"copy", "pytorch_model.bin": b"pickle"}
    hub.files |= {f"some/llama/{name}": data for name, data in (files | copies).items()}
    text = ["--backend", "hf", "-p", "abc", "--raw", "-n", "3", "-q", "-s", "1"]
    refused(specx("run", "-m", "some/llama", *text), "specx pull hf:some/llama")
    n_before = sorted(set(files) - {"config.json"}).index("model.safetensors")
    hub.cuts, hub.status_after_cut = [*[10**9] * n_before, 5000], 503
    refused(specx("pull", "hf:some/llama"), "503")
    refused(specx("run", "-m", "some/llama", *text), "specx pull hf:some/llama")
    hub.status = None
    done = specx("pull", "hf:some/llama")
    folder = Path(done.out.rstrip("\n"))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert "bytes=5000-" in hub.ranges
    n_downloads = len(hub.ranges)
    assert specx("pull", "hf:some/llama") == done
    assert len(hub.ranges) == n_downloads
    hub.requests.clear()
    for name in ("some/llama", "hf:some/llama"):
        assert specx("run", "-m", name, *text).code == 0
    assert hub.requests == []
    (folder / "config.json").resolve().write_text("{}")
    assert specx("pull", "hf:some/llama").code == 0
    assert (folder / "config.json").read_bytes() == files["config.json"]


def test_a_repository_without_such_a_model_is_one_line(hub: Hub, specx: Specx) -> None:
    refused(specx("pull", f"hf:{REPO}"), "name one of its files, such as 'tiny.gguf'")
    hub.files = {"a/b/config.json": b"{}", "a/b/x.bin": b"x"}
    refused(specx("pull", "hf:a/b"), "holds no model in the form that transformers loads; see its")
    hub.files |= {"a/b/x.safetensors": b"x", "a/b/x\x1b.json": b"x"}
    refused(specx("pull", "hf:a/b"), "is not the name of a file")
    assert hub.ranges == []


# Interrupted downloads


def test_a_broken_connection_is_taken_up_again(hub: Hub, specx: Specx, model: bytes) -> None:
    hub.cuts = [30_000]
    done = specx("pull", NAME)
    assert done.code == 0
    assert hub.ranges == [None, "bytes=30000-"]
    assert Path(done.out.rstrip("\n")).read_bytes() == model


def test_a_later_pull_goes_on_where_an_interrupted_one_stopped(
    hub: Hub, specx: Specx, model: bytes, tmp_path: Path
) -> None:
    hub.cuts, hub.status_after_cut = [30_000], 503
    refused(specx("pull", NAME), "503", "pull it again, which goes on from where it stopped")
    assert [blob.stat().st_size for blob in blobs(tmp_path)] == [30_000]
    hub.status = None
    done = specx("pull", NAME)
    assert hub.ranges[-1] == "bytes=30000-"
    assert Path(done.out.rstrip("\n")).read_bytes() == model
    assert len(blobs(tmp_path)) == 1


def test_two_at_once_download_once(hub: Hub, model: bytes) -> None:
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: pull(Known(TINY)), range(2)))
    assert paths[0] == paths[1]
    assert paths[0].read_bytes() == model
    assert hub.ranges == [None]


def test_ctrl_c_keeps_the_part(
    hub: Hub, specx: Specx, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = download._Part.write

    def interrupted(part: download._Part, data: bytes) -> int:
        if part.tell() >= 20_000:
            raise KeyboardInterrupt
        return write(part, data)

    with monkeypatch.context() as patch:
        patch.setattr(download._Part, "write", interrupted)
        assert specx("pull", NAME).code == 130
    (part,) = blobs(tmp_path)
    assert part.read_bytes() == model[:20_000]
    assert Path(specx("pull", NAME).out.rstrip("\n")).read_bytes() == model
    assert hub.ranges[-1] == "bytes=20000-"


# What is wrong


def test_a_wrong_checksum_is_never_used(
    hub: Hub, specx: Specx, model: bytes, tmp_path: Path
) -> None:
    hub.spoiled = True
    refused(specx("pull", NAME), "arrived with SHA-256", "was thrown away; pull it again")
    assert blobs(tmp_path) == []
    assert TINY.path is None
    hub.spoiled = False
    assert specx("pull", NAME).code == 0


def test_a_wrong_checksum_removes_nothing_that_was_good(
    hub: Hub, specx: Specx, model: bytes
) -> None:
    path = Path(specx("pull", NAME).out.rstrip("\n"))
    hub.files[f"{REPO}/tiny.gguf"] = model + b"new"
    hub.commit, hub.spoiled = COMMIT[::-1], True
    refused(specx("pull", "--update", NAME), "arrived with SHA-256")
    assert path.read_bytes() == model
    assert specx("pull", NAME).out == f"{path}\n"


def test_a_checksum_of_the_registry_holds(hub: Hub, model: bytes) -> None:
    right = hashlib.sha256(model).hexdigest()
    with pytest.raises(ModelError, match="is another file on the hub now"):
        pull(Known(TINY, sha256=right[::-1]))
    hub.etag = "a" * 40  # of a small file, which says nothing of the content
    with pytest.raises(ModelError, match="arrived with SHA-256"):
        pull(Known(TINY, sha256=right[::-1]))
    assert pull(Known(TINY, sha256=right)).read_bytes() == model


def test_a_checksum_that_was_learnt_holds_when_the_file_is_gone(
    hub: Hub, specx: Specx, model: bytes, tmp_path: Path
) -> None:
    specx("pull", NAME)
    shutil.rmtree(tmp_path / "hf")
    hub.files[f"{REPO}/tiny.gguf"] = model + b"new"
    refused(specx("pull", NAME), "another file on the hub now", "specx pull --update")
    assert specx("pull", "--update", NAME).code == 0


def test_a_damaged_record_of_checksums_is_replaced(hub: Hub, specx: Specx, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "downloads.json").write_text("[1")
    assert specx("pull", NAME).code == 0
    assert NAME in json.loads((tmp_path / "cache" / "downloads.json").read_text())


def test_a_disk_without_room_is_told_before_anything_is_written(
    hub: Hub, specx: Specx, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = shutil.disk_usage(tmp_path)._replace(free=download.SPARE + len(model) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room)
    refused(specx("pull", NAME), "takes 0.00 GB more", "free some room, or set HF_HUB_CACHE")
    assert hub.ranges == []
    hub.cuts, hub.status_after_cut = [1000], 503
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room._replace(free=room.free + 1))
    refused(specx("pull", NAME), "503")
    hub.status = None
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room)  # the part is not needed again
    assert specx("pull", NAME).code == 0


def test_a_disk_that_fills_up_keeps_the_part_and_what_was_good(
    hub: Hub, specx: Specx, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Path(specx("pull", NAME).out.rstrip("\n"))
    hub.files[f"{REPO}/other.gguf"] = model + b"other"
    write = download._Part.write

    def full(part: download._Part, data: bytes) -> int:
        if part.tell() >= 20_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(part, data)

    with monkeypatch.context() as patch:
        patch.setattr(download._Part, "write", full)
        refused(specx("pull", "hf:maker/tiny-GGUF:other.gguf"), "the disk is full; free some room")
    assert good.read_bytes() == model
    assert specx("pull", "hf:maker/tiny-GGUF:other.gguf").code == 0
    assert hub.ranges[-1] == "bytes=20000-"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "or it is private; check the name, or: hf auth login"),
        (500, "is not downloaded: "),
        (302, "is not a model hub's"),
    ],
)
def test_a_hub_that_refuses_is_one_line(hub: Hub, specx: Specx, status: int, words: str) -> None:
    hub.status = status
    refused(specx("pull", NAME), words)


def test_a_hub_that_is_away_is_one_line(
    hub: Hub, specx: Specx, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    refused(specx("pull", NAME), "is not downloaded: ", "check the network")


def test_what_the_hub_does_not_have_is_one_line(hub: Hub, specx: Specx) -> None:
    refused(specx("pull", "hf:maker/none:tiny.gguf"), "the hub has no repository maker/none")
    refused(specx("pull", "hf:maker/tiny-GGUF:no.gguf"), "has no such file at revision main")
    refused(specx("pull", "qwen9"), "no model is called 'qwen9'; known: ", "qwen3-4b")


def test_words_of_the_hub_cannot_control_a_terminal(hub: Hub, specx: Specx) -> None:
    hub.status, hub.error_message = 500, "\x1b[31mred\x07"
    done = specx("pull", NAME)
    refused(done)
    assert not set(done.err) & {"\x1b", "\x07"}


def test_words_of_the_network_cannot_control_a_terminal(
    hub: Hub, specx: Specx, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("\x1b[31mred\x07")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", fail)
    refused(specx("pull", NAME), r"'\x1b[31mred\x07'; check the network")


def test_offline_is_one_line(hub: Hub, specx: Specx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(specx("pull", NAME), "the network is off (HF_HUB_OFFLINE)")
    refused(specx("run", "-hf", NAME, "-p", "x"), "the network is off (HF_HUB_OFFLINE)")
    assert hub.requests == []


# Names


@pytest.mark.parametrize(
    "name",
    [
        "a/b:../x.gguf", "a/b:x/../../y.gguf", "a/b:/etc/x.gguf", "a/b:x//y.gguf", "a/b:./x.gguf",
        "a/b:C:/x.gguf", "a/b:x\\..\\y.gguf", "a/b:x\x1b.gguf", "a/b:x\n.gguf", "a/b:x\x00.gguf",
        "a/b:x.bin", "a/b:", "b", "a:x.gguf", "a/b/c:x.gguf", "../a:x.gguf", "a/..:x.gguf",
        "a/b--c:x.gguf", "/a/b:x.gguf", "a\\b/c:x.gguf", "a/b@../../x:y.gguf", "a/b@:y.gguf",
        "a/b@/x:y.gguf", "a/b@x/..:y.gguf", "a/b:.../x.gguf", "a/b\n:x.gguf", ":x.gguf", "",
        "a/b:Q4_K_M", "a/b:" + "x" * 500 + ".gguf",
    ],
)  # fmt: skip
def test_a_name_cannot_leave_the_cache(name: str) -> None:
    with pytest.raises(UsageError) as error:
        hub_name(f"hf:{name}")
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "name", ["hf:a/b", "hf:a/b@v1", "hf:a/b:x.gguf", "hf:a-b/c.d_e@v1.0:x y/z[1].gguf"]
)
def test_other_names_are_names(name: str) -> None:
    assert str(hub_name(name)) == name


@pytest.mark.parametrize("etag", ["../../../escaped", "..", "a/b", "a" * 300])
def test_a_checksum_of_the_hub_cannot_leave_the_cache(
    hub: Hub, specx: Specx, etag: str, tmp_path: Path
) -> None:
    hub.etag = etag
    refused(specx("pull", NAME), "is not a model hub's")
    assert not list(tmp_path.rglob("*escaped*"))


@pytest.mark.parametrize("commit", ["../../../escaped", "main", ""])
def test_a_commit_of_the_hub_cannot_leave_the_cache(
    hub: Hub, specx: Specx, commit: str, tmp_path: Path
) -> None:
    hub.commit = commit
    refused(specx("pull", NAME))
    assert not list(tmp_path.rglob("*escaped*"))


# Use


def test_a_run_downloads_only_when_asked(hub: Hub, specx: Specx, tmp_path: Path) -> None:
    text = ["-p", "abc", "--raw", "-n", "3", "-q", "-s", "1"]
    refused(specx("run", "-m", NAME, *text), f"download it: specx pull {NAME}")
    assert hub.requests == []
    asked = specx("run", "-hf", NAME.removeprefix("hf:"), *text)
    assert asked.code == 0
    hub.requests.clear()
    both = specx("run", "-hf", NAME, "-hfd", NAME, *text, "--json")
    assert json.loads(both.out)["models"]["drafter"]["file"].endswith("tiny.gguf")
    (tmp_path / "config").mkdir()
    pair = f'pair = {{ model = "{NAME}", draft = "{NAME}" }}'
    (tmp_path / "config" / "aliases.toml").write_text(pair)
    assert specx("run", "-hf", "pair", *text, "--json").out.count("tiny.gguf") == both.out.count(
        "tiny.gguf"
    )
    assert specx("run", "-m", NAME, *text) == asked
    assert hub.requests == []
    refused(specx("run", "-hf", NAME, "-m", NAME, *text), "-hf", "-m", "leave one out")


BLOCKED = """
import sys
def hook(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        raise OSError(101, "the network is blocked")
sys.addaudithook(hook)
from specx.__main__ import main
main()
"""


def test_without_a_network_what_was_pulled_loads_and_other_commands_work(
    hub: Hub, specx: Specx, tmp_path: Path
) -> None:
    assert specx("pull", NAME).code == 0
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "aliases.toml").write_text(
        f'own = "{NAME}"\nboth = {{ model = "own.gguf", draft = "{NAME}" }}'
    )
    shutil.copy(resolve(NAME).model, tmp_path / "config" / "own.gguf")

    def blocked(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", BLOCKED, *args],
            env={**os.environ, **environment(hub, tmp_path)},
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    text = ["-p", "abc", "--raw", "-n", "3"]
    for args in (
        ["run", "-m", NAME, *text], ["run", "-hf", NAME, *text], ["run", "-m", "own", *text],
        ["run", "-m", "both", *text, "--json"], ["run", "-p", "def", "-n", "3"],
        ["pull", NAME], ["models"], ["models", "--scan"], ["--version"],
    ):  # fmt: skip
        done = blocked(*args)
        assert done.returncode == 0, (args, done.stderr)
    done = blocked("pull", "qwen3-0.6b")
    assert done.returncode == 2
    assert "is not downloaded" in done.stderr
    assert done.stderr.count("\n") == 1
