"""`specx --version` and `--devices`: what is installed, and what it runs on."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import click

from specx.errors import SpecxError

__all__ = ["print_devices", "print_version"]

PACKAGES = {
    "llamacpp": ("llama-cpp-python",),
    "hf": ("torch", "transformers"),
    "toy": ("numpy",),
}
"""What the backends that come with specx are made of; to import it would take seconds."""


def print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print versions as the installed packages state them, and exit; imports no runtime."""
    if not wanted or context.resilient_parsing:
        return
    from importlib.metadata import entry_points

    click.echo(f"specx {_version('specx')}, python {platform.python_version()}")
    for entry in sorted(entry_points(group="specx.backends"), key=lambda entry: entry.name):
        own = (entry.dist.name,) if entry.dist else ()
        packages = PACKAGES.get(entry.name, own)
        click.echo(f"{entry.name}: {', '.join(f'{each} {_version(each)}' for each in packages)}")
    context.exit()


def print_devices(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print versions, builds and devices, one line a backend, and exit."""
    if not wanted or context.resilient_parsing:
        return
    from specx.runtime.backend import installed_backends

    for name in installed_backends():
        click.echo(f"{name}: {_about(name)}")
    context.exit()


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _about(name: str) -> str:
    from specx.runtime.backend import get_backend

    try:
        about = get_backend(name).about()
    except SpecxError as error:
        return str(error)
    versions = [f"{key} {value}" for key, value in about.items() if isinstance(value, str)]
    devices = [_device(device) for device in _list(about, "devices")]
    return ", ".join(versions) + (f"; devices: {', '.join(devices)}" if devices else "")


def _device(device: Mapping[str, Any]) -> str:
    free, total = device.get("memory_free"), device.get("memory_total")
    memory = f", {free / 2**30:.1f} of {total / 2**30:.1f} GiB free" if free and total else ""
    return f"{device['name']} ({device.get('description', '')}{memory})"


def _list(about: Mapping[str, object], key: str) -> list[Mapping[str, Any]]:
    found = about.get(key)
    return found if isinstance(found, list) else []
