"""Plots as SVG, drawn by matplotlib where it is installed, in the page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from specx.records.trace import Trace
from specx.session.tally import Tally

__all__ = ["COLOURS", "INSTALL", "can_plot", "draw_svg", "plots_of"]

INSTALL = "pip install 'specx[report]'"

COLOURS = {
    "ink": "#010203",
    "faint": "#010204",
    "draft": "#010205",
    "verify": "#010206",
    "core": "#010207",
    "rollback": "#010208",
    "other": "#010209",
    "accepted": "#01020a",
    "last": "#01020b",
}
"""Placeholders for matplotlib; in the page each becomes a variable of the style sheet."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": COLOURS["ink"],
    "axes.edgecolor": COLOURS["faint"],
    "axes.labelcolor": COLOURS["ink"],
    "xtick.color": COLOURS["ink"],
    "ytick.color": COLOURS["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def can_plot() -> bool:
    """Whether the extra ``report`` is installed."""
    return find_spec("matplotlib") is not None


def plots_of(trace: Trace, prefix: str) -> list[tuple[str, str]]:
    """(title, SVG) of each plot that the trace has data for.

    Parameters
    ----------
    prefix
        Begins the ids within the SVG, which must be unique in the page.
    """
    if not can_plot() or not trace.rounds:
        return []
    tally = trace.tally()
    wanted: dict[str, tuple[Callable[[Any], None], float]] = {
        "Tokens and time of each round": (lambda figure: _timeline(figure, trace), 3.4)
    }
    if tally.by_position:
        wanted["Acceptance by position in the draft"] = (lambda f: _positions(f, tally), 2.4)
        wanted["Accepted tokens per round"] = (lambda f: _lengths(f, tally), 2.4)
    wanted["Where the time went"] = (lambda figure: _split(figure, tally), 1.6)
    return [
        (what, draw_svg(draw, height, f"{prefix}-{i}"))
        for i, (what, (draw, height)) in enumerate(wanted.items())
    ]


def draw_svg(draw: Callable[[Any], None], height: float, prefix: str) -> str:
    """A figure of `height` inches, filled by `draw`, as SVG for a page.

    `prefix` begins its ids.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, "svg.hashsalt": prefix}):
        figure = Figure(figsize=(5.2, height), layout="constrained")
        figure.patch.set_visible(False)
        FigureCanvasSVG(figure)
        draw(figure)
        for axes in figure.axes:
            axes.patch.set_visible(False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(out.getvalue(), prefix)


def _inline(svg: str, prefix: str) -> str:
    """Without prologue and metadata, with unique ids and the page's colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r'(<svg[^>]*?) (?:width="[^"]*")', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) (?:height="[^"]*")', r"\1", svg, count=1)
    svg = svg.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg


def _timeline(figure: Any, trace: Trace) -> None:
    """Above, tokens by round; below, milliseconds; as areas, so that the size stays small."""
    tokens, time = figure.subplots(2, 1, sharex=True)
    edges = np.arange(len(trace.rounds) + 1)
    accepted = np.array([done.n_accepted for done in trace.rounds], dtype=float)
    _area(tokens, edges, np.zeros(len(accepted)), accepted, "accepted", "accepted")
    _area(tokens, edges, accepted, accepted + 1, "last", "the verifier's own")
    tokens.set_ylabel("tokens")
    below = np.zeros(len(accepted))
    for part in ("draft", "verify", "core", "rollback"):
        spent = np.array([getattr(done.times, part) * 1e3 for done in trace.rounds])
        _area(time, edges, below, below + spent, part, part)
        below = below + spent
    time.set_ylabel("ms")
    time.set_xlabel("round")
    for axes in (tokens, time):
        axes.margins(x=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=9)


def _area(axes: Any, edges: Any, low: Any, high: Any, colour: str, label: str) -> None:
    steps = [np.append(values, values[-1]) for values in (low, high)]
    axes.fill_between(edges, *steps, step="post", color=COLOURS[colour], label=label, linewidth=0)


def _positions(figure: Any, tally: Tally) -> None:
    axes = figure.subplots()
    places = range(1, len(tally.by_position) + 1)
    axes.bar(places, tally.alpha_by_position, color=COLOURS["accepted"], width=0.7)
    for place, (tested, _) in zip(places, tally.by_position, strict=True):
        rate = tally.alpha_by_position[place - 1]
        axes.annotate(f"{rate:.2f} of {tested}", (place, rate + 0.02), ha="center", fontsize=9)
    axes.set_xticks(list(places))
    axes.set_ylim(0, 1.15)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("acceptance rate")


def _lengths(figure: Any, tally: Tally) -> None:
    axes = figure.subplots()
    lengths = sorted(tally.lengths)
    axes.bar(lengths, [tally.lengths[n] for n in lengths], color=COLOURS["accepted"], width=0.7)
    axes.set_xticks(lengths)
    axes.set_xlabel("accepted tokens")
    axes.set_ylabel("rounds")


def _split(figure: Any, tally: Tally) -> None:
    axes = figure.subplots()
    left = 0.0
    for part, seconds in tally.time().items():
        if part != "total":
            shown = max(seconds, 0.0)
            axes.barh([0], [shown], left=left, color=COLOURS[part], label=part)
            left += shown
    axes.set_yticks([])
    axes.margins(x=0)
    axes.set_xlabel("seconds")
    figure.legend(loc="outside upper left", ncols=5, fontsize=9, handlelength=1)
