"""Says of models, from their files alone, whether they work alone and together."""

from __future__ import annotations

from specx.check.records import CheckRecord, LoadedRecord
from specx.check.report import Candidate, check_models, with_loaded

__all__ = ["Candidate", "CheckRecord", "LoadedRecord", "check_models", "with_loaded"]
