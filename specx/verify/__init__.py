"""The checks behind `specx verify`; each reports its finding, its margin and its error rate.

`rules` needs no model: it enumerates the rule, tests the sampler by chi-square, and tests the
distribution of the loop's texts over several rounds on a small table. `models` checks loaded
models: their caches, and the distribution of one round of the loop behind `specx run`.
"""

from specx.verify.bench import Bench
from specx.verify.check import FALSE_POSITIVE, Check
from specx.verify.models import (
    LAW_TOP_K,
    audit_cache,
    check_models,
    compare_batches,
    enumerated_round,
    round_law,
)
from specx.verify.rules import (
    LAW_GAMMA,
    check_rule,
    enumerate_rule,
    loop_law,
    sample_rule,
)

__all__ = [
    "FALSE_POSITIVE",
    "LAW_GAMMA",
    "LAW_TOP_K",
    "Bench",
    "Check",
    "audit_cache",
    "check_models",
    "check_rule",
    "compare_batches",
    "enumerate_rule",
    "enumerated_round",
    "loop_law",
    "round_law",
    "sample_rule",
]
