"""Where a model is: a GGUF file, a folder, or a hub id in the local cache."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from specx.errors import ModelError, SpecxError
from specx.runtime.backend import LoadOptions
from specx.runtime.hub import WANTED
from specx.runtime.inputs import read_text, require_regular
from specx_backends.files import check_file
from specx_backends.hf_library import require
from specx_backends.library import first_line

__all__ = ["locate"]

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
HUB_TIMEOUT = 5.0
CONFIG = "config.json"
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""Where transformers looks for weights: one file, else the list of all."""
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def locate(name: str, options: LoadOptions) -> Path:
    """The GGUF file or the folder that `name` stands for; downloads a hub id if it must and may.

    Raises
    ------
    ModelError
        If there is no such thing, or it holds no weights that can be loaded.
    UsageError
        If it is neither a regular file nor a folder, or a file of the folder cannot be read.
    """
    path = Path(name)
    if path.is_dir():
        check_folder(path)
    elif path.exists() or name.endswith(".gguf") or not HUB_ID.fullmatch(name):
        require_regular(path, "the model")  # else a pipe would be waited for
        check_file(path)
    else:
        path = hub_folder(name, offline=bool(options.offline))
        check_folder(path)
    return path


def check_folder(folder: Path) -> None:
    """Raise ModelError unless `folder` holds a configuration and weights in safetensors."""
    if not (folder / CONFIG).is_file():
        if (folder / "adapter_config.json").is_file():
            raise ModelError(f"'{folder}' is an adapter (LoRA), not a whole model; merge it first")
        files = sorted(folder.glob("*.gguf"))
        remedy = f"name the file, such as '{files[0]}'" if files else "give a model's folder"
        raise ModelError(f"'{folder}' is a directory without a {CONFIG}; {remedy}")
    if (folder / WHOLE).is_file():
        return
    if (folder / INDEX).exists():
        check_shards(folder)
        return
    pickled = sorted(file.name for pattern in PICKLED for file in folder.glob(pattern))
    if pickled:
        raise ModelError(
            f"'{folder}' holds pickled weights only ({pickled[0]}), which can run code when they "
            "are loaded; convert them to safetensors"
        )
    found = sorted(file.name for file in folder.glob("*.safetensors"))
    lacks = f", only {found[0]} without {INDEX}" if found else ""
    raise ModelError(f"'{folder}' holds no weights ({WHOLE}){lacks}; download it again")


def check_shards(folder: Path) -> None:
    """Raise ModelError unless every file that the index of `folder` names is there."""
    text = read_text(folder / INDEX, "the index of the weights")
    try:
        named = {str(name) for name in json.loads(text)["weight_map"].values()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"'{folder / INDEX}' is damaged; download it again") from error
    missing = sorted(name for name in named if not (folder / name).is_file())
    if missing or not named:
        raise ModelError(
            f"'{folder}' lacks {len(missing)} of the {len(named)} files that {INDEX} names"
            f"{', such as ' + missing[0] if missing else ''}; download it again"
        )


def hub_folder(name: str, *, offline: bool) -> Path:
    """The folder of a hub id in the local cache, downloaded first where that is allowed."""
    hub = require("huggingface_hub")
    offline = offline or require("huggingface_hub.constants").HF_HUB_OFFLINE
    cached = cached_folder(hub, name)
    if cached is not None and (is_whole(cached) or (offline and (cached / CONFIG).is_file())):
        return cached  # what it lacks is told next
    if offline:
        raise ModelError(
            f"'{name}' is no file or folder, and no model of that name is cached; the network is "
            f"off while a model loads; download it with: specx pull hf:{name}"
        )
    try:
        hub.HfApi().model_info(name, timeout=HUB_TIMEOUT)  # else a download retries for minutes
        return Path(hub.snapshot_download(name, **WANTED))
    except Exception as error:  # of the HTTP client, of the hub, of the file system
        raise ModelError(
            f"'{name}' is no file or folder, nor cached, and cannot be downloaded "
            f"({first_line(error)}); check the name and the network"
        ) from error


def cached_folder(hub: Any, name: str) -> Path | None:
    """The folder of `name` in the cache, whole as far as `WANTED` goes."""
    try:
        return Path(hub.snapshot_download(name, local_files_only=True, **WANTED))
    except (OSError, ValueError):  # not cached; not a name that the hub allows
        return None


def is_whole(folder: Path) -> bool:
    """Whether a cached folder can be loaded as it is."""
    try:
        check_folder(folder)
    except SpecxError:
        return False
    return True
