"""A trace to look at: one page that stands alone, and the numbers behind it."""

from specx.report.figures import Figure, figures, position_rows, result_of, title_of
from specx.report.page import page
from specx.report.plots import INSTALL, can_plot

__all__ = [
    "INSTALL",
    "Figure",
    "can_plot",
    "figures",
    "page",
    "position_rows",
    "result_of",
    "title_of",
]
