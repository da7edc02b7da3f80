"""File options: each is marked as read or written, and no command overwrites a file it reads."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import click
from click.shell_completion import CompletionItem

from specx.cli.naming import name_models, names_like
from specx.errors import UsageError
from specx.records.kinds import kind_of, require_kind
from specx.runtime.shards import shards_of
from specx.shipped import shipped

__all__ = ["CacheFolder", "Command", "HubModel", "InputFile", "Model", "OutputPath"]

Identity: TypeAlias = "tuple[object, ...]"


class InputFile(click.Path):
    """A file that the command reads."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def files(self, value: Path) -> Iterable[Path]:
        """All files that `value` refers to."""
        return [value]


class Model(click.types.StringParamType):
    """A model: a file, a folder, a name of the library's, or one that the backend accepts."""

    def files(self, value: str) -> Iterable[Path]:
        """The file and its sibling shards, or the files of the folder."""
        path = Path(value)
        if path.is_dir():
            return _foreign(path.glob("*"))
        return shards_of(path)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Known names that begin so, and files."""
        return [*names_like(incomplete), CompletionItem(incomplete, type="file")]


class HubModel(click.types.StringParamType):
    """A name of the library's that may be downloaded."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Known names that begin so."""
        return names_like(incomplete)


class CacheFolder(click.types.StringParamType):
    """A folder of weights, one subfolder per model, that the backend reads and fills."""

    def files(self, value: str) -> Iterable[Path]:
        """The files that it holds now."""
        return _foreign(Path(value).glob("*/*"))


READ = (InputFile, Model, CacheFolder)


class OutputPath(click.Path):
    """A file that the command writes.

    Parameters
    ----------
    kind
        The kind of result (`specx.records.kinds`), or a function of the options that returns it;
        None if the command itself checks the existing file.
    """

    def __init__(self, kind: str | Callable[[Mapping[str, Any]], str | None]) -> None:
        super().__init__(path_type=Path)
        self.kind = kind

    def kind_under(self, given: Mapping[str, Any]) -> str | None:
        """The kind of result that is written under the options `given`."""
        return self.kind if isinstance(self.kind, str) else self.kind(given)


class Command(click.Command):
    """A command that checks its outputs before it begins, so that no file is lost.

    Commands with outputs also have ``--force``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        written = [i for i, p in enumerate(self.params) if isinstance(p.type, OutputPath)]
        if written:
            self.params.insert(written[-1] + 1, _force())

    def invoke(self, ctx: click.Context) -> Any:
        force = ctx.params.pop("force", False)
        name_models(ctx.params, [param for param in self.params if isinstance(param.type, Model)])
        outputs = list(_outputs(self, ctx))
        if outputs:
            _refuse_losses(outputs, [*_inputs(self, ctx), *_redirections()], force=force)
        return super().invoke(ctx)


def _force() -> click.Option:
    text = "Overwrite files that are not earlier results of the same kind, but never an input."
    return click.Option(["--force"], is_flag=True, help=text)


@dataclass(frozen=True)
class _Output:
    option: str
    path: Path
    kind: str | None

    def __str__(self) -> str:
        return f"{self.option} {self.path}"


def _outputs(command: click.Command, ctx: click.Context) -> Iterator[_Output]:
    for param in command.params:
        if isinstance(param.type, OutputPath):
            kind = param.type.kind_under(ctx.params)
            for path in _values(param, ctx):
                yield _Output(param.opts[0], path, kind)


def _inputs(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, Path]]:
    """Every file that is read, with its description for errors."""
    for param in command.params:
        if isinstance(param.type, READ):
            option = f"{param.opts[0]} " if isinstance(param, click.Option) else ""
            for value in _values(param, ctx):
                for path in param.type.files(value):
                    yield f"the file that {option}{value} reads", path
    for path in shipped():
        yield "a file that came with specx", path


def _values(param: click.Parameter, ctx: click.Context) -> Iterable[Any]:
    value = ctx.params.get(param.name or "")
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def _redirections() -> Iterator[tuple[str, Identity]]:
    """Files that the shell opened for this process."""
    for number, does in enumerate(["input reads", "output goes to", "error goes to"]):
        try:
            facts = os.fstat(number)
        except OSError:  # closed
            continue
        if stat.S_ISREG(facts.st_mode):
            yield f"the file that standard {does}", (facts.st_dev, facts.st_ino)


def _refuse_losses(
    outputs: Iterable[_Output], taken: Iterable[tuple[str, Path | Identity]], *, force: bool
) -> None:
    """Raise UsageError if an output is in `taken`, is named twice, or holds other data."""
    owners = {_identity(file) if isinstance(file, Path) else file: words for words, file in taken}
    for output in outputs:
        _require_regular(output)
        identity = _identity(output.path)
        if identity in owners:
            raise UsageError(f"{output} is {owners[identity]}; name another file")
        owners[identity] = f"the file that {output} writes"
        if output.kind is not None and not force:
            remedy = "name another file, or add --force to overwrite it"
            require_kind(output.path, output.kind, output.option, remedy=remedy)


def _require_regular(output: _Output) -> None:
    path = output.path
    if os.path.exists(path) and not os.path.isfile(path):
        what = "a directory" if os.path.isdir(path) else "not a regular file"
        raise UsageError(f"cannot write {output}: it is {what}; name another file")


def _identity(path: Path) -> Identity:
    """A key that is equal for all names of one file, even one that does not exist yet."""
    try:
        facts = os.stat(path)
        return facts.st_dev, facts.st_ino
    except (OSError, ValueError):
        pass
    try:
        resolved = path.resolve()
        folder = os.stat(resolved.parent)
    except (OSError, RuntimeError, ValueError):  # no such folder, links in a circle, a NUL
        return (str(path),)
    return folder.st_dev, folder.st_ino, os.path.normcase(resolved.name)


def _foreign(paths: Iterable[Path]) -> Iterator[Path]:
    """The files that specx did not write; its results are never part of a model."""
    return (path for path in paths if path.is_file() and kind_of(path) is None)
