"""Comparison of one pair on two systems, which separates the algorithm from the runtime."""

from specx.compare.agreement import Agreement, Forced, agreement_along
from specx.compare.findings import Findings, Outcome, findings_of
from specx.compare.names import Traits, differences, names_of
from specx.compare.reading import read_comparison
from specx.compare.records import comparison_record
from specx.compare.run import Comparison, System, run_comparison
from specx.compare.split import Acceptance, Costs, Split, speedup, split_difference
from specx.compare.words import Verdict, verdict

__all__ = [
    "Acceptance",
    "Agreement",
    "Comparison",
    "Costs",
    "Findings",
    "Forced",
    "Outcome",
    "Split",
    "System",
    "Traits",
    "Verdict",
    "agreement_along",
    "comparison_record",
    "differences",
    "findings_of",
    "names_of",
    "read_comparison",
    "run_comparison",
    "speedup",
    "split_difference",
    "verdict",
]
