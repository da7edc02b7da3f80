"""`specx --version`: what is installed and what it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from specx import __version__, get_backend, installed_backends
from specx.errors import SpecxError

__all__ = ["print_version"]


def print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print versions and devices, one line a backend, and exit."""
    if not wanted or context.resilient_parsing:
        return
    click.echo(f"specx {__version__}")
    for name in installed_backends():
        click.echo(f"{name}: {_about(name)}")
    context.exit()


def _about(name: str) -> str:
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
