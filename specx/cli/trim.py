"""`specx trim`: a drafter with fewer vocabulary entries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path

import click

from specx.bench.suites import suite as prompts_of
from specx.cli.files import Command, InputFile, Model, OutputPath
from specx.cli.progress import Progress
from specx.errors import OptionError, UsageError
from specx.output import OutputFile
from specx.runtime.backend import get_backend
from specx.runtime.trimming import Trimmed, Trimmer

__all__ = ["trim"]

PIECE = 2**16
"""Characters of a corpus that are tokenized at a time."""

EPILOG = """\b
Examples:
  specx trim drafter.gguf -o small.gguf --keep 32000
  specx trim drafter.gguf -o small.gguf --keep 32000 --corpus my-texts.txt
"""


@click.command(cls=Command, epilog=EPILOG)
@click.argument("model", type=Model(), metavar="DRAFTER")
@click.option("-o", "--output", type=OutputPath("trimmed model"), required=True,
              help="The file to write.")  # fmt: skip
@click.option("--keep", type=click.IntRange(min=1), required=True, metavar="N",
              help="Vocabulary entries to keep, at most.")  # fmt: skip
@click.option("--corpus", type=InputFile(),
              help="Keep what this text uses most.  "
              "[default: what comes first in the tokenizer]")  # fmt: skip
@click.option("--suite", metavar="KIND[:N],...",
              help="Keep what these built-in prompts use most.")  # fmt: skip
@click.option("--backend", default="llamacpp", show_default=True, help="Runtime of the model.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, and nothing at the end.")
def trim(
    model: str,
    output: Path,
    keep: int,
    corpus: Path | None,
    suite: str | None,
    backend: str,
    quiet: bool,
) -> None:
    """Make a drafter smaller, with fewer vocabulary entries.

    Special and byte tokens always stay; any text can still be written, in more tokens where an
    entry is gone. The result is an ordinary GGUF file, and a drafter of another tokenizer than the
    verifier's.
    """
    if corpus is not None and suite is not None:
        raise UsageError(f"--corpus {corpus} and --suite {suite} exclude each other; leave one out")
    trimmer = _trimmer(backend)
    prompts = None if suite is None else [prompt.text for prompt in prompts_of(suite)]
    file = OutputFile(output)
    progress = Progress(enabled=not quiet)
    size = 0 if corpus is None else _size(corpus)
    with progress.task("choosing entries", size or 1) as report:
        texts = prompts if corpus is None else _pieces(corpus, report)
        trimmed = trimmer.trim(model, keep, texts)
    with progress.task(f"writing {output.name}", trimmed.n_bytes) as report:
        file.write_chunks(_reported(trimmed, report))
    if not quiet:
        click.echo(_summary(output, trimmed))


def _trimmer(backend: str) -> Trimmer:
    factory = get_backend(backend)
    if not hasattr(factory, "trim"):
        raise OptionError(f"backend '{backend}' cannot trim models; try --backend llamacpp")
    trimmer: Trimmer = factory  # type: ignore[assignment]
    return trimmer


def _size(corpus: Path) -> int:
    try:
        return os.path.getsize(corpus)
    except OSError as error:
        raise _unreadable(corpus, error) from error


def _pieces(corpus: Path, report: Callable[[float], None]) -> Iterator[str]:
    try:
        with corpus.open("rb") as data:
            text = TextIOWrapper(data, "utf-8", errors="surrogateescape", newline="")
            while piece := text.read(PIECE):
                yield piece
                report(data.tell())
    except OSError as error:
        raise _unreadable(corpus, error) from error


def _unreadable(corpus: Path, error: OSError) -> UsageError:
    reason = (error.strerror or str(error)).lower()
    return UsageError(f"cannot read --corpus {corpus}: {reason}; give a text file")


def _reported(trimmed: Trimmed, report: Callable[[float], None]) -> Iterator[bytes]:
    done = 0
    for chunk in trimmed.chunks():
        yield chunk
        done += len(chunk)
        report(done)


def _summary(output: Path, trimmed: Trimmed) -> str:
    covered = "" if trimmed.coverage is None else f", {trimmed.coverage:.1%} of the text's tokens"
    return (
        f"{output}: {trimmed.n_kept:,} of {trimmed.n_whole:,} vocabulary entries{covered}; "
        f"{trimmed.n_bytes / 1e6:,.0f} MB of {trimmed.whole_bytes / 1e6:,.0f} MB"
    )
