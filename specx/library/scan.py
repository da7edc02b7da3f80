"""Finds the models that LM Studio, Ollama, llama.cpp and the hub's own tools have downloaded."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specx.runtime.shards import shard_names, shards_of

__all__ = ["Found", "scan"]

MODEL_LAYER = "application/vnd.ollama.image.model"
DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
MOST_MANIFEST = 1 << 20
"""Bytes; manifests have some hundreds."""
USUAL = ("registry.ollama.ai/", "library/")
"""What Ollama itself leaves out of a name."""


@dataclass(frozen=True)
class Found:
    """A GGUF model on this machine."""

    program: str
    """Whose folder it is in."""
    name: str
    """As that program calls it."""
    path: Path
    """Its first file."""
    bytes: int
    """Of all its files."""


def scan() -> list[Found]:
    """All GGUF models in the folders of other programs, by program and name."""
    home = Path.home()
    lm_studio = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    chosen = os.environ.get("LLAMA_CACHE")
    llama_cpp = (
        [Path(chosen)]
        if chosen
        else [home / ".cache" / "llama.cpp", home / "Library" / "Caches" / "llama.cpp"]
    )
    ollama = Path(os.environ.get("OLLAMA_MODELS") or home / ".ollama" / "models")
    found = [
        *(model for folder in lm_studio for model in _files("LM Studio", folder)),
        *_ollama(ollama),
        *(model for folder in llama_cpp for model in _files("llama.cpp", folder)),
        *_hub(),
    ]
    return sorted(found, key=lambda model: (model.program, model.name))


def _files(program: str, folder: Path) -> Iterator[Found]:
    """The models below a folder; their names are their paths there."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            first = shard_names(name)[0]
            if name.endswith(".gguf") and name == first and not name.startswith("mmproj"):
                yield from _found(program, path.relative_to(folder).as_posix(), path)


def _found(program: str, name: str, path: Path) -> Iterator[Found]:
    shards = [shard for shard in shards_of(path) if shard.is_file()]  # a link may lead nowhere
    if shards and shards[0] == path:
        yield Found(program, name, path, sum(shard.stat().st_size for shard in shards))


def _hub() -> Iterator[Found]:
    """The models in the hub's cache, of the newest revision that each was taken from."""
    from huggingface_hub import constants

    newest: dict[str, Found] = {}
    for folder in Path(constants.HF_HUB_CACHE).glob("models--*/snapshots/*"):
        repo = folder.parent.parent.name.removeprefix("models--").replace("--", "/")
        for model in _files("hub", folder):
            name = f"hf:{repo}:{model.name}"
            before = newest.get(name)
            if before is None or before.path.stat().st_mtime < model.path.stat().st_mtime:
                newest[name] = Found("hub", name, model.path, model.bytes)
    yield from newest.values()


def _ollama(folder: Path) -> Iterator[Found]:
    """The models that Ollama's manifests name; the files themselves are named by checksum."""
    manifests = folder / "manifests"
    for place, _, tags in os.walk(manifests):
        for tag in tags:
            name = Path(place).relative_to(manifests).as_posix()
            for usual in USUAL:
                name = name.removeprefix(usual)
            for digest in _model_digests(Path(place, tag)):
                for blob in (f"sha256-{digest}", f"sha256:{digest}"):
                    yield from _found("Ollama", f"{name}:{tag}", folder / "blobs" / blob)


def _model_digests(manifest: Path) -> Iterator[str]:
    """Checksums of the models in a manifest; none if it is damaged."""
    try:
        if manifest.stat().st_size > MOST_MANIFEST:
            return
        layers = json.loads(manifest.read_bytes())["layers"]
        digests = [_digest(layer) for layer in layers if layer["mediaType"] == MODEL_LAYER]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return
    yield from (digest for digest in digests if digest is not None)


def _digest(layer: Any) -> str | None:
    found = DIGEST.fullmatch(layer["digest"])
    return None if found is None else found[1]
