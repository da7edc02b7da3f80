"""Where a model is: a GGUF file, a folder, or a hub id in the local cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from specx.backend import LoadOptions
from specx.errors import ModelError
from specx_backends.hf_library import first_line, require
from specx_backends.llamacpp_loading import check_file

__all__ = ["locate"]

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
HUB_FILES = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja"]
HUB_TIMEOUT = 5.0
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def locate(name: str, options: LoadOptions) -> Path:
    """The GGUF file or the folder that `name` stands for; downloads a hub id if it must and may.

    Raises
    ------
    ModelError
        If there is no such thing, or it holds no weights that can be loaded.
    """
    path = Path(name)
    if path.is_dir():
        check_folder(path)
    elif path.exists() or name.endswith(".gguf") or not HUB_ID.fullmatch(name):
        check_file(path)
    else:
        path = hub_folder(name, offline=bool(options.offline))
        check_folder(path)
    return path


def check_folder(folder: Path) -> None:
    """Raise ModelError unless `folder` holds a configuration and weights in safetensors."""
    if not (folder / "config.json").is_file():
        files = sorted(folder.glob("*.gguf"))
        remedy = f"name the file, such as '{files[0]}'" if files else "give a model's folder"
        raise ModelError(f"'{folder}' is a directory without a config.json; {remedy}")
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(file.name for pattern in PICKLED for file in folder.glob(pattern))
    if pickled:
        raise ModelError(
            f"'{folder}' holds pickled weights only ({pickled[0]}), which can run code when they "
            "are loaded; convert them to safetensors"
        )
    raise ModelError(f"'{folder}' holds no weights (*.safetensors); download it again")


def hub_folder(name: str, *, offline: bool) -> Path:
    """The folder of a hub id in the local cache, downloaded first where that is allowed."""
    hub = require("huggingface_hub")
    offline = offline or require("huggingface_hub.constants").HF_HUB_OFFLINE
    cached = cached_folder(hub, name)
    if cached is not None and (offline or is_whole(cached)):
        return cached
    if offline:
        raise ModelError(
            f"'{name}' is no file or folder, and no model of that name is cached; the network is "
            "off (offline, HF_HUB_OFFLINE)"
        )
    try:
        hub.HfApi().model_info(name, timeout=HUB_TIMEOUT)  # else a download retries for minutes
        return Path(hub.snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # of the HTTP client, of the hub, of the file system
        raise ModelError(
            f"'{name}' is no file or folder, nor cached, and cannot be downloaded "
            f"({first_line(error)}); check the name and the network"
        ) from error


def cached_folder(hub: Any, name: str) -> Path | None:
    """The folder of `name` in the cache."""
    try:
        return Path(hub.snapshot_download(name, local_files_only=True))
    except (OSError, ValueError):  # not cached; not a name that the hub allows
        return None


def is_whole(folder: Path) -> bool:
    """Whether a cached folder can be loaded as it is."""
    try:
        check_folder(folder)
    except ModelError:
        return False
    return True
