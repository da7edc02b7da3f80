"""A trace as a page in one file, and the numbers behind it."""

from specx.report.figures import (
    MOST_TEXTS,
    Figure,
    figures,
    generation_rows,
    position_rows,
    settings_of,
    title_of,
)
from specx.report.page import page
from specx.report.plots import INSTALL, can_plot
from specx.report.sweep import sweeps_of

__all__ = [
    "INSTALL",
    "MOST_TEXTS",
    "Figure",
    "can_plot",
    "figures",
    "generation_rows",
    "page",
    "position_rows",
    "settings_of",
    "sweeps_of",
    "title_of",
]
