#!/usr/bin/env python3
"""Writes the JSON Schema of `specx check --json` from the types that it is made of.

scripts/check_schema.py            writes specx/check/schema.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from specx.check import CheckRecord, records
from trace_schema import descriptions

PATH = Path("specx/check/schema.json")


def schema() -> dict[str, Any]:
    """The schema, with the fields' docstrings as descriptions; no other fields are allowed."""
    (root,), types = msgspec.json.schema_components([CheckRecord], ref_template="#/$defs/{name}")
    documents = dict(descriptions(records))
    for name, definition in types.items():
        definition["additionalProperties"] = False
        for field, inner in definition["properties"].items():
            if text := documents.get((name, field)):
                inner["description"] = text
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"What specx check --json prints, version {records.FORMAT}",
        **root,
        "$defs": dict(sorted(types.items())),
    }


def written() -> str:
    """The file's content."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (Path(__file__).parents[1] / PATH).write_text(written(), encoding="utf-8")
