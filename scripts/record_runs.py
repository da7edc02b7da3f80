#!/usr/bin/env python3
"""Records the output of 40 runs, so that a later version can be compared with this one.

scripts/record_runs.py            writes tests/recorded_runs.json
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specx.cli import exit_code_of

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "tests" / "recorded_runs.json"
TOY = f"--backend toy -m {ROOT}/models/toy/verifier.toml -md {ROOT}/models/toy/drafter.toml"
TOY_ALONE = f"--backend toy -m {ROOT}/models/toy/verifier.toml"
HF = "--backend hf"
PAIR = f"{HF} --dtyped float32"  # bfloat16 is the default where a CPU has instructions for it

RUNS = [
    # The demo pair on llama.cpp: rules, seeds, lengths, samplers.
    "-p 'def fibonacci(n):' -n 60 -s 1",
    "-p 'def fibonacci(n):' -n 60 -s 2 --rule token",
    "-p 'def fibonacci(n):' -n 60 -s 3 --rule match",
    "-p 'import os' -n 60 --temp 0 -s 0",
    "-p 'class Stack:' -n 60 -s 4 --gamma 1",
    "-p 'class Stack:' -n 60 -s 5 --gamma 16 --temp 1 --top-p 1",
    "-p 'for x in' -n 60 -s 6 --top-k 5 --min-p 0.1",
    "-p 'def main():' -n 60 -s 7 --no-draft",
    "-p 'def main():' -n 40 -s 8 --no-cache",
    "-p 'def main():' -n 60 -s 9 --gamma auto",
    "-p 'x = 1' -n 60 -s 10 --draft lookup",
    "-p 'x = 1\ny = 1\nx = 1\n' -n 60 -s 11 --draft lookup --temp 0",
    "-p 'x = 1' -n 60 -s 12 --draft model,lookup",
    "-p 'x = 1' -n 60 -s 13 --draft lookup --gamma 6",
    "-p 'return' -n 60 -s 14 --stop '\n\n' --stop 'def '",
    "-p 'return' -n 60 -s 15 --ignore-eos --gamma 8",
    "-p 'while True' -n 60 -s 16 --entropy-stop 0.2",
    "-p 'while True' -n 60 -s 17 --draft-p-min 0.5 --gamma 8",
    "-p 'with open' -n 60 -s 18 --draft-temp 0.3 --draft-top-p 0.8",
    "-p 'with open' -n 0 -s 19",
    "-p 'with open' -n 1 -s 20",
    "-p 'a' -n 100 -s 21 -c 64",
    "-p 'def f(é, 日本):' -n 40 -s 22 --raw",
    # A toy pair.
    f"{TOY} -p 'ab' -n 80 --ignore-eos -s 1",
    f"{TOY} -p 'ab' -n 80 --ignore-eos -s 2 --gamma 3 --rule token",
    f"{TOY} -p 'ab' -n 80 --ignore-eos -s 3 --gamma 3 --rule match",
    f"{TOY} -p 'ab' -n 80 --ignore-eos -s 4 --gamma 5 --temp 0",
    f"{TOY} -p 'ab' -n 80 --ignore-eos -s 5 --draft model,lookup",
    f"{TOY_ALONE} -p 'ab' -n 80 --ignore-eos -s 6 --draft lookup --gamma 7",
    f"{TOY_ALONE} -p 'ab' -n 80 --ignore-eos -s 7",
    f"{TOY} -p 'ab' -n 80 --ignore-eos -s 8 --gamma 4 --entropy-stop 0.4 --temp 1.5 --top-p 1",
    # The demo pair on transformers.
    f"{PAIR} -p 'def fibonacci(n):' -n 40 -s 1",
    f"{PAIR} -p 'def fibonacci(n):' -n 40 -s 2 --rule token --gamma 2",
    f"{PAIR} -p 'import os' -n 40 --temp 0 -s 0 --gamma 8",
    f"{HF} -p 'x = 1' -n 40 -s 3 --draft lookup",
    f"{PAIR} -p 'x = 1' -n 40 -s 4 --draft model,lookup",
    f"{PAIR} -p 'return' -n 40 -s 5 --stop '\n\n'",
    f"{HF} -p 'return' -n 40 -s 6 --no-draft",
    f"{PAIR} -p 'return' -n 40 -s 7 --gamma auto",
    "--draft-backend hf --dtyped float32 -p 'return' -n 40 -s 8 --rule match",
]


def record(arguments: str) -> dict[str, Any]:
    """The output of a run: text, tokens, rounds, and the names of all ``--json`` fields."""
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        command = ["run", *shlex.split(arguments), "--json", "-q", "--trace", str(trace)]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = exit_code_of(command)
        result = json.loads(out.getvalue())
        lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    return {
        "arguments": arguments.replace(f"{ROOT}/", ""),
        "exit_code": code,
        **{name: result[name] for name in ("text", "tokens", "stop_reason", "gammas")},
        "prompt": next(line["prompt_ids"] for line in lines if line["kind"] == "header"),
        "rounds": [shape_of(line) for line in lines if line["kind"] == "round"],
        "json_names": sorted(names_of(result)),
    }


def shape_of(line: dict[str, Any]) -> dict[str, Any]:
    """The proposal of a round, and its outcome."""
    return {
        "proposed": [entry["id"] for entry in line["draft"]],
        "accepted": line["n_accepted"],
        "drafter": line["drafter"],
    }


def names_of(value: Any, above: str = "") -> set[str]:
    """Paths of all names in a JSON object, list entries as one."""
    if isinstance(value, dict):
        return {f"{above}.{key}" for key in value}.union(
            *(names_of(inner, f"{above}.{key}") for key, inner in value.items())
        )
    if isinstance(value, list):
        return set[str]().union(*(names_of(inner, f"{above}[]") for inner in value))
    return set()


if __name__ == "__main__":
    assert len(RUNS) == 40
    text = "[\n" + ",\n".join(json.dumps(record(run)) for run in RUNS) + "\n]"
    RECORDED.write_text(f"{text}\n", encoding="utf-8")
