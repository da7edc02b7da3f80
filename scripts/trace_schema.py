#!/usr/bin/env python3
"""Writes the JSON Schema of a trace's lines from the types that read and write them.

scripts/trace_schema.py            writes specx/records/trace/schema.json
"""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import msgspec

from specx.core import sampling
from specx.records.trace import records
from specx.records.trace.reading import KINDS
from specx.session import decoding, result

PATH = Path(__file__).parent.parent / "specx" / "records" / "trace" / "schema.json"
MODULES = (records, sampling, decoding, result)
"""Modules that define the types of a trace; their fields' docstrings become descriptions."""


def schema() -> dict[str, Any]:
    """The schema: a line is exactly one of the kinds, and holds no other fields."""
    lines, types = msgspec.json.schema_components(KINDS.values(), ref_template="#/$defs/{name}")
    documents = {name: text for module in MODULES for name, text in descriptions(module)}
    for name, definition in types.items():
        fields = definition.get("properties", {})
        if fields:
            definition["additionalProperties"] = False
        for field, inner in fields.items():
            if text := documents.get((name, field)):
                inner["description"] = text
        if "kind" in fields and definition.get("title") in {k.__name__ for k in KINDS.values()}:
            definition["required"] = [*definition["required"], "kind"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of a specx trace, schema {records.SCHEMA}",
        "oneOf": list(lines),
        "$defs": dict(sorted(types.items())),
    }


def descriptions(module: Any) -> list[tuple[tuple[str, str], str]]:
    """Class and field, with the docstring under the field, for all classes of a module."""
    found = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef):
            for field, below in zip(node.body, node.body[1:], strict=False):
                text = below.value.value if is_text(below) else None  # type: ignore[attr-defined]
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and text:
                    found.append(((node.name, field.target.id), " ".join(text.split())))
    return found


def is_text(node: ast.stmt) -> bool:
    """Whether a statement is a docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def written() -> str:
    """The file's content."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(written(), encoding="utf-8")
