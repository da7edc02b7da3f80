"""The checks that refute each planted fault: runs all of them, and writes the table of the docs.

    scripts/fault_table.py            # runs (minutes), writes docs/faults.json and the table
    scripts/fault_table.py --check    # only compares the table with docs/faults.json

The checks are those of `specx verify`, at its own numbers of draws; the checks of loaded models run
on a toy pair of random tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from specx.core.rules import RULES, Rule
from specx.core.sampling import SamplingParams
from specx.records.markdown import markdown_table
from specx.verify import LAW_GAMMA, LAW_TOP_K, Bench, Check, check_models, check_rule
from specx.verify.faults import FAULTS, Fault
from specx_backends.toy import Toy, ToyTable

DOCS = Path(__file__).resolve().parent.parent / "docs"
RECORD, PAGE = DOCS / "faults.json", DOCS / "exactness.md"
BEGIN, END = "<!-- faults: written by scripts/fault_table.py -->\n", "<!-- end of faults -->"
CHECKS = ("enumeration", "sampler", "loop", "batch against single", "cache audit", "round")
SEED, TRIALS = 1, 4000
WORDS = ("<s>", "</s>", *"abcdefghij")


def main() -> int:
    """Run and write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="run nothing, compare the table")
    if not parser.parse_args().check:
        record = {"seed": SEED, "trials": TRIALS, "faults": {n: refuted(f) for n, f in all_of()}}
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(with_table(page(), read_record()), encoding="utf-8")
    if with_table(page(), read_record()) == page():
        return 0
    print(f"{PAGE.name} does not hold the table of {RECORD.name}; run scripts/fault_table.py")
    return 1


def all_of() -> Iterator[tuple[str, Fault]]:
    """No fault at all, and then each."""
    yield Fault.name, Fault()
    yield from FAULTS.items()


def refuted(fault: Fault) -> dict[str, list[str]]:
    """For each check, the rules under which it refutes `fault`."""
    found: dict[str, list[str]] = {name: [] for name in CHECKS}
    for name in fault.rules:
        for check in run(RULES[name], fault):
            if not check.holds and name not in found[check.name]:
                found[check.name].append(name)
    print(f"{fault.name}: {found}", flush=True)
    return found


def run(rule: type[Rule], fault: Fault) -> Iterator[Check]:
    """All checks of one rule."""
    yield from check_rule(rule, fault, SEED, lambda share: None)
    sampling = SamplingParams(temperature=1, top_k=LAW_TOP_K, top_p=1)
    bench = Bench(toy("verifier", 1), toy("drafter", 2), sampling, rule, fault, LAW_GAMMA)
    prompt = bench.verifier.tokenizer.encode("abcdefg", add_special=True, parse_special=False)
    yield from check_models(bench, prompt, TRIALS, SEED, lambda share: None)


def toy(name: str, seed: int) -> Toy:
    """A table of random rows, one after each token: the filters leave other tokens on each side."""
    rng = np.random.default_rng(seed)
    contexts: list[tuple[int, ...]] = [(), *((token,) for token in range(len(WORDS)))]
    rows = {context: [0.0, *rng.dirichlet(np.ones(len(WORDS) - 1))] for context in contexts}
    return Toy(ToyTable(tokens=WORDS, rows=rows, bos="<s>", eog=("</s>",)), name=name)


def page() -> str:
    """The document as it is."""
    return PAGE.read_text(encoding="utf-8")


def read_record() -> dict[str, Any]:
    """The results of the last run."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def with_table(text: str, record: dict[str, Any]) -> str:
    """`text` with the table of `record` between its marks."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table(record) + END + after


def table(record: dict[str, Any]) -> str:
    """One line per fault: the rules under which each check refuted it."""
    lines = [["fault", *CHECKS]]
    for name, fault in FAULTS.items():
        found = record["faults"][name]
        cells = [_cell(found[check], fault) for check in CHECKS]
        lines.append([f"`{name}`: {fault.summary}", *cells])
    return markdown_table(lines)


def _cell(rules: list[str], fault: Fault) -> str:
    return "all" if tuple(rules) == Fault.rules else ", ".join(rules) or "-"


if __name__ == "__main__":
    raise SystemExit(main())
