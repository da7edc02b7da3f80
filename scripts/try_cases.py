"""Inputs that once failed, each tried on specx in a process of its own.

    scripts/try_cases.py                          # every row, and the files of ../shared/cases
    scripts/try_cases.py --rows 50 51             # some rows
    scripts/try_cases.py --mutate 200 --seed 7    # fresh mutations of a tiny model file
    scripts/try_cases.py --templates 99 --records 99 --options 99

Exit code 0, 1 or 2; with 2 one line on standard error that begins with "specx:"; an end within 15
seconds; at most 500 MB and the size of the input files; never a traceback. Exits 1 when a run
breaks one of these. Files of failures are kept, and the folder is named at the end.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from cases.fuzz import FUZZERS
from cases.rows import cases, of_file
from cases.running import SECONDS, Case, Outcome, try_case

FILES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "files"
HEADER = ("row", "what", "code", "s", "MB", "", "standard error")


def main() -> int:
    """Try them, and print a table."""
    options = parse_options()
    folder = Path(tempfile.mkdtemp(prefix="specx-cases-"))
    fuzzing = any(getattr(options, name) for name in FUZZERS)
    found = fuzzed(options, folder) if fuzzing else known(options, folder)
    failures, kinds = try_all(found, options.seconds, quiet=fuzzing)
    print()
    for (row, kind), count in sorted(kinds.items()):
        if fuzzing:
            print(f"{count:6d}  {row}: {kind}")
    print(f"{sum(kinds.values())} runs, {failures} failed")
    if failures:
        print(f"the files are in {folder}")
    else:
        shutil.rmtree(folder)
    return int(failures > 0)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", default=[], help="only these; 'file' is the folder's")
    parser.add_argument("--files", type=Path, default=FILES, help="a folder of more inputs")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="most that a run may take")
    parser.add_argument("--seed", type=int, default=0, help="of the fresh inputs")
    for name, fuzzer in FUZZERS.items():
        about = (fuzzer.__doc__ or "").splitlines()[0]
        parser.add_argument(f"--{name}", type=int, default=0, metavar="N", help=f"N fresh: {about}")
    return parser.parse_args()


def known(options: argparse.Namespace, folder: Path) -> Iterator[Case]:
    """The rows asked for, and the files of the folder."""
    files = sorted(options.files.iterdir()) if options.files.is_dir() else []
    if "file" in options.rows and not files:
        raise SystemExit(f"try_cases: no files in {options.files}; name their folder with --files")
    for case in chain(cases(folder), *map(of_file, files)):
        if not options.rows or case.row in options.rows:
            yield case


def fuzzed(options: argparse.Namespace, folder: Path) -> Iterator[Case]:
    """As many fresh inputs of each kind as asked for."""
    for name, fuzzer in FUZZERS.items():
        if count := getattr(options, name):
            (folder / name).mkdir()
            yield from fuzzer(folder / name, random.Random(options.seed), count)


def try_all(
    found: Iterable[Case], seconds: float, *, quiet: bool
) -> tuple[int, Counter[tuple[str, str]]]:
    """Run each, print its line (only a failure's when `quiet`); failures, and counts by kind."""
    failures, kinds = 0, Counter[tuple[str, str]]()
    print(line(HEADER))
    for case in found:
        outcome = try_case(case, seconds)
        kinds[case.row, outcome.kind] += 1
        failures += bool(outcome.faults)
        if outcome.faults or not quiet:
            print(line(cells(case, outcome)), flush=True)
        if outcome.faults:
            print(f"{'':11}{' '.join(shown(word) for word in case.words)}")
        elif quiet and sys.stderr.isatty():
            print(f"\r{sum(kinds.values())} runs", end="", file=sys.stderr)
    return failures, kinds


def cells(case: Case, outcome: Outcome) -> tuple[str, ...]:
    """The table's row for a run."""
    verdict = f"FAILED: {'; '.join(outcome.faults)}" if outcome.faults else "ok"
    return (
        case.row, case.what, str(outcome.code), f"{outcome.seconds:.1f}", f"{outcome.peak_mb:.0f}",
        verdict, outcome.line,
    )  # fmt: skip


def line(parts: tuple[str, ...]) -> str:
    """The columns; control characters are escaped, so that no input reaches the terminal."""
    row, what, code, seconds, memory, verdict, said = (shown(part) for part in parts)
    return f"{row:10} {what:45.45} {code:>4} {seconds:>5} {memory:>5}  {verdict:8} {said:.110}"


def shown(text: str) -> str:
    """Printable, and not longer than a line."""
    text = text if len(text) < 200 else f"{text[:150]}... ({len(text)} characters)"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


if __name__ == "__main__":
    raise SystemExit(main())
