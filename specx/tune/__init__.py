"""What speculation gains with a pair on this machine, and the settings that gain most."""

from specx.tune.measure import Asked, Measurement, in_turns, measure
from specx.tune.recommend import Candidate, ranked, recommend, uncertainty
from specx.tune.surface import Surface, agreement, lookup_surface, model_surface, rates_by_kind
from specx.tune.whatif import WhatIf, parse_what_if

__all__ = [
    "Asked",
    "Candidate",
    "Measurement",
    "Surface",
    "WhatIf",
    "agreement",
    "in_turns",
    "lookup_surface",
    "measure",
    "model_surface",
    "parse_what_if",
    "ranked",
    "rates_by_kind",
    "recommend",
    "uncertainty",
]
