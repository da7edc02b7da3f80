"""How many tokens to propose, by whom: decided each round from what is known before the draw."""

from specx.schedule.auto import Auto
from specx.schedule.base import Decision, Fixed, Outcome, Schedule
from specx.schedule.costs.live import Costs
from specx.schedule.costs.table import table_profile
from specx.schedule.early import EarlyStop
from specx.schedule.replay import Replay, Step, Traced, read_steps, write_step

__all__ = [
    "Auto",
    "Costs",
    "Decision",
    "EarlyStop",
    "Fixed",
    "Outcome",
    "Replay",
    "Schedule",
    "Step",
    "Traced",
    "read_steps",
    "table_profile",
    "write_step",
]
