"""`specx bench --curve`: the cost of a pass by its width, plotted and explained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specx.bench.explain import explain, milliseconds
from specx.bench.profiling import profile_pair
from specx.bench.values import whole_numbers
from specx.cli.load import Side, load_pair
from specx.cli.progress import Progress
from specx.codec import to_json
from specx.errors import UsageError
from specx.output import OutputFile
from specx.runtime.backend import Tokenizer
from specx.schedule.costs.curve import Curve, Profile, profile_record

__all__ = ["CurveOptions", "measure_curves"]

CONTEXT = 256
REPEATS = 5
BAR = 36
MOST_WIDTH = 4096
"""Tokens per pass: longer than any draft, and still quick enough to measure."""


@dataclass(frozen=True, kw_only=True)
class CurveOptions:
    """Options of `specx bench --curve`."""

    widths: str
    as_json: bool
    verbose: bool

    def all_widths(self) -> list[int]:
        """The widths to time; always 1, a round without a draft, and 2, the shortest with one."""
        widths = whole_numbers("--widths", self.widths, MOST_WIDTH)
        if min(widths) < 1:
            raise UsageError(f"--widths {self.widths} must begin at 1 or more")
        return sorted({1, 2, *widths})


def measure_curves(
    options: CurveOptions,
    sides: list[Side],
    encode: Callable[[Tokenizer], list[int]],
    output: OutputFile | None,
    progress: Progress,
) -> int:
    """Measure, print and write a pair's profile, on the text that `encode` gives."""
    widths = options.all_widths()
    need = CONTEXT + widths[-1]
    with load_pair(
        sides, lambda _: need, verbose=options.verbose, cached=True, progress=progress
    ) as pair:
        passes = len(pair.models) * len(widths) * (REPEATS + 1)
        text = encode(pair.verifier.tokenizer)
        with progress.task("timing passes", passes) as report:
            profile = profile_pair(pair, text, CONTEXT, widths, REPEATS, report=report)
    _print(profile, options.as_json)
    if output is not None:  # last, so that a full disk does not cost the figures
        output.write(to_json(profile_record(profile), indent=1) + "\n")
    return 0


def _print(profile: Profile, as_json: bool) -> None:
    if as_json:
        record = {**profile_record(profile), "words": explain(profile)}
        click.echo(to_json(record))
        return
    console = Console(highlight=False, markup=False)
    for role, curve in profile.curves().items():
        console.print(_plot(role, curve))
        console.print()
    for line in explain(profile):
        console.print(line)


def _plot(role: str, curve: Curve) -> Table:
    """A bar per width; the whisker is the upper quartile."""
    table = Table(box=None, title=f"{role}: {curve.model}, after {curve.n_past} tokens",
                  title_justify="left")  # fmt: skip
    for name in ("width", "ms", "in units of one"):
        table.add_column(name, justify="right")
    table.add_column("")
    most = max(curve.high)
    for width, seconds, high in zip(curve.widths, curve.seconds, curve.high, strict=True):
        bar = "█" * max(1, round(BAR * seconds / most))
        whisker = "─" * (round(BAR * high / most) - len(bar))
        ratio = f"{seconds / curve(1):.2f}"
        table.add_row(str(width), milliseconds(seconds), ratio, Text(bar + whisker))
    return table
