"""What predicts a rejection: acceptance against entropies and margins, tested tokens only."""

from specx.study.analysis import Predictor, analyse
from specx.study.observations import PREDICTORS, Observations, observe
from specx.study.render import FORMATS
from specx.study.running import Plan, run_study

__all__ = [
    "FORMATS",
    "PREDICTORS",
    "Observations",
    "Plan",
    "Predictor",
    "analyse",
    "observe",
    "run_study",
]
