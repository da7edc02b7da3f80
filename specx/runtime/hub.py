"""What a model in a repository on the hub consists of, in the form that transformers loads."""

from __future__ import annotations

from typing import Any

__all__ = ["WANTED"]

HUB_FILES = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja"]
HUB_COPIES = ["*/*", "consolidated*"]
"""Copies of the same weights for other programs: in folders (``original/``, ``onnx/``), and
Mistral's beside them. A pattern's ``*`` matches slashes too, so `HUB_FILES` alone would take them.
"""
WANTED: dict[str, Any] = {"allow_patterns": HUB_FILES, "ignore_patterns": HUB_COPIES}
"""Asked of the hub and of its cache alike, which is incomplete where it lacks a file asked for."""
