"""The results of a sweep: the tables that `specx bench` prints, and plots over gamma."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from specx.bench.render import Rows, interval_name, kind_rows, series_label, speed_rows, time_rows
from specx.records.trace import BenchSummary, Trace
from specx.report.plots import COLOURS, can_plot, draw_svg

__all__ = ["Series", "series_of", "sweep_plots", "sweep_tables", "sweeps_of"]

Arm: TypeAlias = Mapping[str, Any]
SAMPLER = ("backend", "draft_backend", "temperature", "top_k", "top_p", "min_p")
"""Settings that an arm shares with the one that it is measured against."""


class Series:
    """Arms that differ only in gamma, with the numbers of `specx bench --json`."""

    def __init__(self, name: str, arms: Sequence[Arm], plain: float | None) -> None:
        self.name = name
        self.plain = plain
        """Tokens per second of the verifier alone under the same sampler."""
        self._arms = sorted(arms, key=lambda arm: int(arm["settings"]["gamma"]))
        self.gammas = [int(arm["settings"]["gamma"]) for arm in self._arms]
        self.interval = interval_name(self._arms)
        """What the ends of the speed-ups are."""

    def figures(self, name: str) -> list[float]:
        """One figure at each gamma; NaN where it is unknown."""
        return [float("nan") if arm[name] is None else float(arm[name]) for arm in self._arms]


def sweeps_of(traces: Sequence[Trace]) -> list[BenchSummary]:
    """The finished sweeps that `traces` are runs of."""
    found = {id(trace.bench): trace.bench for trace in traces if trace.bench is not None}
    return list(found.values())


def sweep_tables(bench: BenchSummary) -> list[tuple[str, list[str], Rows]]:
    """(title, header, rows) of each table."""
    arms = _measured(bench)
    tables = {
        "Measured and predicted speed": speed_rows(arms),
        "Acceptance, and where the time went": time_rows(arms),
        "By kind of prompt": kind_rows(arms),
    }
    return [(name, rows[0], rows[1:]) for name, rows in tables.items() if rows]


def series_of(bench: BenchSummary) -> list[Series]:
    """The arms of a fixed gamma above 0, in groups over gamma."""
    arms = _measured(bench)
    groups: dict[str, list[Arm]] = {}
    for arm in arms:
        if arm["settings"]["gamma"] not in (0, "auto"):
            groups.setdefault(series_label(arm, arms), []).append(arm)
    return [Series(name, group, _plain(group[0], arms)) for name, group in groups.items()]


def sweep_plots(bench: BenchSummary, prefix: str) -> list[tuple[str, str]]:
    """(title, SVG) of each series; `prefix` begins the ids within."""
    if not can_plot():
        return []
    return [
        (
            f"Speed by gamma{': ' if series.name else ''}{series.name}",
            draw_svg(partial(_draw, series=series), 4.2, f"{prefix}-{i}"),
        )
        for i, series in enumerate(series_of(bench))
    ]


def _measured(bench: BenchSummary) -> list[Arm]:
    return [arm for arm in bench.arms if arm["n_runs"]]


def _plain(arm: Arm, arms: Sequence[Arm]) -> float | None:
    """Tokens per second of the arm that `arm` is measured against."""
    sampler = [arm["settings"][key] for key in SAMPLER]
    alone = (other for other in arms if not other["settings"]["gamma"])
    return next((a["tok_s"] for a in alone if [a["settings"][k] for k in SAMPLER] == sampler), None)


def _draw(figure: Any, series: Series) -> None:
    """Above, tokens per second; below, the measured speed-up, its spread, and predictions."""
    rate, speedup = figure.subplots(2, 1, sharex=True)
    _line(rate, series, "tok_s", "verify", "o-", "measured")
    if series.plain is not None:
        rate.axhline(series.plain, color=COLOURS["other"], linestyle="--", label="verifier alone")
    rate.set_ylabel("tok/s")
    rate.set_ylim(bottom=0)
    _line(speedup, series, "speedup", "verify", "o-", "measured")
    low, high = series.figures("speedup_low"), series.figures("speedup_high")
    speedup.vlines(series.gammas, low, high, color=COLOURS["verify"], label=series.interval)
    _line(speedup, series, "predicted", "draft", "s--", "predicted")
    _line(speedup, series, "predicted_textbook", "core", "^:", "textbook")
    speedup.axhline(1, color=COLOURS["faint"], linewidth=0.8)
    speedup.set_ylabel("speed-up")
    speedup.set_xlabel("gamma")
    speedup.set_xticks(series.gammas)
    for axes in (rate, speedup):
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=9)


def _line(axes: Any, series: Series, name: str, colour: str, form: str, label: str) -> None:
    found = series.figures(name)
    axes.plot(series.gammas, found, form, color=COLOURS[colour], label=label, markersize=5)
