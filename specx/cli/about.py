"""`specx --version` and `--devices`: installed packages, builds and devices."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from specx.errors import SpecxError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["print_devices", "print_version"]


def print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the versions of the installed packages, and exit; imports no runtime."""
    if not wanted or context.resilient_parsing:
        return
    from specx.runtime.plugins import registered

    click.echo(f"specx {_version('specx')}, python {platform.python_version()}")
    for name, entry in registered("specx.backends").items():
        click.echo(f"{name}: {_packages(entry)}")
    context.exit()


def print_devices(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print versions, builds and devices, one line per backend, and exit."""
    if not wanted or context.resilient_parsing:
        return
    from specx.runtime.backend import installed_backends

    for name in installed_backends():
        click.echo(f"{name}: {_about(name)}")
    context.exit()


def _packages(entry: EntryPoint) -> str:
    """Versions of the packages behind a backend, which is not imported.

    These are the requirements of the extra that has the backend's name, in the distribution that
    registers it; without such an extra, that distribution itself.
    """
    if entry.dist is None:
        return "of an unknown distribution"
    marker = re.compile(rf"""extra\s*==\s*['"]{re.escape(entry.name)}['"]""")
    required = [one for one in entry.dist.requires or [] if marker.search(one)]
    names = [re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in required] or [entry.dist.name]
    return ", ".join(f"{name} {_version(name)}" for name in names)


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
    value = about.get(key)
    return value if isinstance(value, list) else []
