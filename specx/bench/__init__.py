"""Sweeps of settings over prompts, each compared with the verifier alone in interleaved runs."""

from specx.bench.profiling import profile_pair
from specx.bench.records import Arm, ArmRecord, Results, Run, read_results, results_record
from specx.bench.summary import summarise
from specx.bench.sweep import Plan, Watch, run_sweep
from specx.bench.warn import warnings_of

__all__ = [
    "Arm",
    "ArmRecord",
    "Plan",
    "Results",
    "Run",
    "Watch",
    "profile_pair",
    "read_results",
    "results_record",
    "run_sweep",
    "summarise",
    "warnings_of",
]
