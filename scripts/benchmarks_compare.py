"""The worked comparisons of docs/benchmarks.md: is it the algorithm or the runtime?

    scripts/benchmarks_compare.py --models models/test          # ten minutes
    scripts/benchmarks_compare.py --models models/test runtime  # one of them

Each is one `specx compare` command; its JSON is kept in docs/benchmarks. The page's tables are
written by scripts/benchmarks.py.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from specx.compare import read_comparison
from specx.compare.render import as_markdown

RECORDS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
DRAFTER = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
Q4_K_M = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
F16 = "qwen2.5-coder-1.5b-instruct-f16.gguf"
PROMPTS = "--suite factual:1,opinion:1,code:1 -n 64"
COMMANDS = {
    "runtime": f"-m {F16} -md {DRAFTER} {PROMPTS} -r 3",
    "quantisation": f"-m {Q4_K_M} --against {F16} -md {DRAFTER} {PROMPTS} -r 1",
}


def main() -> int:
    """Measure the named comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*COMMANDS, []], help="all by default")
    parser.add_argument("--models", type=Path, required=True, help="the folder of the models")
    options = parser.parse_args()
    for name in options.names or COMMANDS:
        words = [
            str(options.models / word) if word.endswith(".gguf") else word
            for word in [*COMMANDS[name].split(), "-o", str(file_of(name).relative_to(Path.cwd()))]
        ]
        print("specx compare", *words, file=sys.stderr)
        code = subprocess.run([sys.executable, "-m", "specx", "compare", *words]).returncode
        if code:
            return code
    return 0


def file_of(name: str) -> Path:
    """The path of a comparison's record."""
    return RECORDS / f"compare-{name}.json"


def compare_tables() -> str:
    """Each comparison: its command, tables, verdict and warnings."""
    return "\n".join(worked(name) for name in COMMANDS)


def worked(name: str) -> str:
    """One comparison, as its record has it."""
    record = read_comparison(file_of(name))
    return f"    specx compare {COMMANDS[name]}\n\n{as_markdown(record, provenance=False)}"


if __name__ == "__main__":
    raise SystemExit(main())
