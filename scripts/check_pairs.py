#!/usr/bin/env python3
"""The table of docs/check.md: `specx check` on every pair of the test models.

    scripts/check_pairs.py run --models models/test   # a minute; writes the record
    scripts/check_pairs.py page                       # writes the table into the page
    scripts/check_pairs.py page --check               # only compares

Each check is a process of its own, whose processor time and peak memory are recorded (Linux).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

from specx.records.markdown import markdown_table

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "check.md"
RECORD = ROOT / "docs" / "check.json"
MODELS = {
    "SmolLM2 135M Q4_1": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "Gemma 3 270M Q4_K_M": "gemma-3-270m-q4_k_m.gguf",
    "Qwen 0.5B Q4_K_M": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "Qwen 1.5B Q4_K_M": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "Qwen 1.5B F16": "qwen2.5-coder-1.5b-instruct-f16.gguf",
}
VERDICTS = {"good": "good", "limits": "works", "cannot": "cannot work"}
PROBE = """
import resource, sys
from specx.cli import exit_code_of
exit_code_of(["check", "--json", *sys.argv[1:]])
used = resource.getrusage(resource.RUSAGE_SELF)
peak = open("/proc/self/status").read().split("VmHWM:")[1].split()[0]
print(used.ru_utime + used.ru_stime, int(peak) / 1024)
"""
"""The peak of this process alone: `ru_maxrss` begins with that of the process that started it."""


def main() -> int:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--models", type=Path, default=ROOT / "models" / "test")
    page = commands.add_parser("page")
    page.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args()
    if options.command == "run":
        pairs = [checked(options.models, *names) for names in product(MODELS, repeat=2)]
        RECORD.write_text(json.dumps(pairs, indent=1) + "\n", encoding="utf-8")
        return 0
    return write_page(check=options.check)


def checked(folder: Path, verifier: str, drafter: str) -> dict[str, Any]:
    """What `specx check` says of a pair, and what it took."""
    files = [str(folder / MODELS[name]) for name in (verifier, drafter)]
    command = [sys.executable, "-c", PROBE, "-m", files[0], "-md", files[1]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    record, figures = done.stdout.splitlines()
    seconds, mib = map(float, figures.split())
    said = json.loads(record)
    print(f"{verifier}, {drafter}: {said['verdict']}, {seconds:.2f} s, {mib:.0f} MiB")
    return {
        "verifier": verifier,
        "drafter": drafter,
        **{key: said[key] for key in ("verdict", "faults", "limits")},
        "cpu_s": round(seconds, 2),
        "peak_mib": round(mib),
    }


def read_record() -> list[dict[str, Any]]:
    """What was recorded, pair by pair."""
    pairs: list[dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return pairs


def write_page(*, check: bool) -> int:
    """Insert the table between its markers."""
    text = PAGE.read_text(encoding="utf-8")
    new = with_table(text, read_record())
    if check and new != text:
        print(f"{PAGE.name} does not hold its table; run scripts/check_pairs.py page")
        return 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


def with_table(text: str, pairs: list[dict[str, Any]]) -> str:
    """The page with the table of `pairs`."""
    return re.sub(
        r"(<!-- pairs -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{table(pairs)}{found[2]}",
        text,
        flags=re.DOTALL,
    )


def table(pairs: list[dict[str, Any]]) -> str:
    """A row per pair, and a line about time and memory."""
    header = ["verifier", "drafter", "verdict", "why"]
    rows = [
        [
            pair["verifier"],
            pair["drafter"],
            VERDICTS[pair["verdict"]],
            "; ".join(pair["faults"] or pair["limits"]),
        ]
        for pair in pairs
    ]
    return (
        f"{markdown_table([header, *rows])}\n"
        f"Processor time per check: {span([pair['cpu_s'] for pair in pairs])} s. "
        f"Peak memory: {span([pair['peak_mib'] for pair in pairs])} MiB.\n"
    )


def span(values: list[float]) -> str:
    """The least and the most."""
    return f"{min(values)} to {max(values)}"


if __name__ == "__main__":
    raise SystemExit(main())
