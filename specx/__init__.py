"""specx: speculative decoding that provably does not change the output."""

from importlib.metadata import version

from specx.accept import accept, expected_accepted
from specx.acceptance import RULES, Block, Rule, Verdict
from specx.backend import LoadOptions, LogitsBackend, Tokenizer, get_backend, installed_backends
from specx.decoding import Round, Stop
from specx.errors import SpecxError
from specx.pair import Pair, Settings
from specx.sampling import Distribution, SamplingParams, distribution
from specx.stats import Tally

__version__ = version("specx")

__all__ = [
    "RULES",
    "Block",
    "Distribution",
    "LoadOptions",
    "LogitsBackend",
    "Pair",
    "Round",
    "Rule",
    "SamplingParams",
    "Settings",
    "SpecxError",
    "Stop",
    "Tally",
    "Tokenizer",
    "Verdict",
    "__version__",
    "accept",
    "distribution",
    "expected_accepted",
    "get_backend",
    "installed_backends",
]
