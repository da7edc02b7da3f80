"""The tables of docs/benchmarks.md: measures them, and writes the page from what was measured.

    scripts/benchmarks.py run --models models/test         # half an hour; resumes
    scripts/benchmarks.py run gamma --models models/test   # one table
    scripts/benchmarks.py page                             # writes the tables into the page
    scripts/benchmarks.py page --check                     # only compares

Each table is one `specx bench` command per verifier; its JSON is kept in docs/benchmarks. The
figures for `--gamma auto`, `specx compare`, other programs, servers and a busy machine are measured
by scripts/measure_auto.py, scripts/benchmarks_compare.py, scripts/bench_peers.py,
scripts/bench_server.py and scripts/measure_busy.py; this script writes them into the page.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import measure_auto
import measure_busy
from benchmarks_compare import compare_tables
from peers.page import peers_table, rules_table
from servers.page import alternate_table, compare_table
from specx.bench import read_results, results_record, summarise
from specx.bench.explain import explain
from specx.bench.render import speedup_of
from specx.bench.speedup import median_speedup
from specx.bench.summary import paired_ratios
from specx.records.markdown import markdown_table
from specx.schedule.costs.curve import read_profile

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, RECORDS = DOCS / "benchmarks.md", DOCS / "benchmarks"
DRAFTER = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
VERIFIERS = {
    "Q4_K_M": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "F16": "qwen2.5-coder-1.5b-instruct-f16.gguf",
}
COMMANDS = {
    "curve": "--curve",
    "cache": "--suite factual:1 --cache --no-cache --gamma 4 -n 100 -r 2",
    "gamma": "--suite factual:1 --gamma 4,6,8 -n 200 -r 2",
    "temperature": "--suite factual:1 --temp 0.01,0.3,0.7 --gamma 4 -n 200 -r 2",
    "kind": "--suite factual:1,opinion:1 --gamma 4 -n 200 -r 2",
}
AUTO_PARTS = (
    ("f16", "F16"),
    ("q4_k_m", "Q4_K_M"),
    ("hf-bf16", "F16 on transformers, the verifier in float32"),
    ("hf", "F16 on transformers, both models in float32"),
    ("cold-f16", "F16, cold start"),
    ("temp-f16", "F16"),
)
LOOKUP_PARTS = (("lookup-f16", "F16"), ("lookup-q4_k_m", "Q4_K_M"))
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 32)
REFERENCE = "reference"

Record = dict[str, Any]
Row = list[str]


def main() -> int:
    """Measure, or write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure the missing tables")
    run.add_argument("names", nargs="*", choices=[*COMMANDS, []], help="tables; all by default")
    run.add_argument("--models", type=Path, required=True, help="the folder of the models")
    page = commands.add_parser("page", help="write the tables")
    page.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args()
    if options.command == "run":
        return measure(options.names or list(COMMANDS), options.models)
    return write_page(check=options.check)


def measure(names: list[str], models: Path) -> int:
    """Run the commands, one after the other."""
    for label, verifier in VERIFIERS.items():
        for name in names:
            pair = ["-m", str(models / verifier), "-md", str(models / DRAFTER)]
            output = ["-o", str(file_of(name, label)), *([] if name == "curve" else ["--resume"])]
            words = [*COMMANDS[name].split(), *pair, *output]
            print("specx bench", *words, file=sys.stderr)
            code = subprocess.run([sys.executable, "-m", "specx", "bench", *words]).returncode
            if code:
                return code
    return 0


def file_of(name: str, label: str) -> Path:
    """Where a table's record of one verifier is kept."""
    return RECORDS / f"{name}-{label.lower()}.json"


def write_page(*, check: bool) -> int:
    """Insert the tables between their markers."""
    text = PAGE.read_text(encoding="utf-8")
    new = with_tables(text)
    if check and new != text:
        print(f"{PAGE.name} does not hold its tables; run scripts/benchmarks.py page")
        return 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


def with_tables(text: str) -> str:
    """The page with each table as the records have it."""

    def table(found: re.Match[str]) -> str:
        return f"{found[1]}{TABLES[found[2]]()}{found[3]}"

    return re.sub(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", table, text, flags=re.DOTALL)


def markdown(header: Row, rows: Iterator[Row] | list[Row]) -> str:
    """A table; the columns after the first two are figures."""
    return markdown_table([header, *rows], figures=header[2:])


def commands_of(name: str) -> str:
    """The command behind a table."""
    return f"    specx bench -m VERIFIER.gguf -md DRAFTER.gguf {COMMANDS[name]}\n\n"


def arms_of(name: str) -> Iterator[tuple[str, Record]]:
    """(verifier, arm) of a table."""
    for label in VERIFIERS:
        results = read_results(file_of(name, label))
        for arm in results_record(results, summarise(results))["arms"]:
            yield label, arm


def cache_table() -> str:
    """The speculative arm with its caches against itself without."""
    header = ["verifier", "arm", "tok/s", "rounds per run", "cached / uncached"]
    rows = [row for label in VERIFIERS for row in cache_rows(label)]
    rows += [
        [REFERENCE, "gamma 4, cached", "14.2", "36", "2.12x"],
        [REFERENCE, "gamma 4, no cache", "6.7", "26", ""],
    ]
    return commands_of("cache") + markdown(header, rows)


def cache_rows(label: str) -> Iterator[Row]:
    """Both arms of one verifier; the ratio is of runs that took turns."""
    results = read_results(file_of("cache", label))
    arms = {arm.cached: runs for arm, runs in results.runs.items() if arm.gamma}
    ratio = median_speedup(paired_ratios(arms[True], arms[False]))
    assert ratio is not None
    for cached, name in ((True, "cached"), (False, "no cache")):
        runs = arms[cached]
        rounds = median(run.tally.rounds for run in runs)
        speed = median(run.tok_s for run in runs)
        shown = str(ratio) if cached else ""
        yield [label, f"gamma 4, {name}", f"{speed:.2f}", f"{rounds:.0f}", shown]


SPEED = ["tok/s", "speed-up", "predicted", "textbook", "alpha", "kept", "tau"]


def gamma_table() -> str:
    """One gamma after the other, against the verifier alone."""
    rows = [[label, drafting(arm), *speeds(arm)] for label, arm in arms_of("gamma")]
    rows += [
        [REFERENCE, "verifier alone", "13.9-14.1", "", "", "", "", "", ""],
        [REFERENCE, "gamma 4", "13.8-14.7", "0.99-1.16x", "", "", "", "0.48-0.53", ""],
        [REFERENCE, "gamma 6", "13.7-15.3", "0.99-1.08x", "", "", "", "0.45-0.53", ""],
        [REFERENCE, "gamma 8", "11.6-13.1", "0.82-0.94x", "", "", "", "0.39-0.43", ""],
    ]
    return commands_of("gamma") + markdown(["verifier", "arm", *SPEED], rows)


def temperature_table() -> str:
    """Temperatures, each with its own baseline."""
    rows = [
        [label, f"{arm['settings']['temperature']:g}, {drafting(arm)}", *speeds(arm)]
        for label, arm in arms_of("temperature")
    ]
    rows.append([REFERENCE, "0.01, 0.3, 0.7", "", "", "", "", "", "similar", ""])
    return commands_of("temperature") + markdown(["verifier", "temperature, arm", *SPEED], rows)


def kind_table() -> str:
    """Factual prompts against opinions."""
    header = ["verifier", "prompts, arm", "tok/s", "speed-up", "alpha", "kept", "tau"]
    rows = [
        [label, f"{kind}, {drafting(arm)}", *speeds(found, predicted=False)]
        for label, arm in arms_of("kind")
        for kind, found in arm["by_kind"].items()
    ]
    rows.append([REFERENCE, "opinion", "", "never above 1", "", "0.20-0.40", ""])
    return commands_of("kind") + markdown(header, rows)


def drafting(arm: Record) -> str:
    """The draft setting of an arm."""
    gamma = arm["settings"]["gamma"]
    return f"gamma {gamma}" if gamma else "verifier alone"


def speeds(arm: Record, *, predicted: bool = True) -> Row:
    """The figures of one line."""
    shown = [number(arm["tok_s"]), speedup_of(arm)]
    if predicted:
        shown += [times(arm["predicted"]), times(arm["predicted_textbook"])]
    return [*shown, number(arm["alpha"]), number(arm["kept"]), number(arm["tau"])]


def times(value: float | None) -> str:
    """1.27x"""
    return "" if value is None else f"{value:.2f}x"


def number(value: float | None) -> str:
    """Format with two decimals; None becomes empty."""
    return "" if value is None else f"{value:.2f}"


def prediction_table() -> str:
    """The errors of both formulas, compared with the measurements."""
    arms = [arm for name in ("gamma", "temperature", "kind") for _, arm in arms_of(name)]
    arms = [arm for arm in arms if arm["predicted"] is not None]
    header = ["formula", "", "median error", "largest error", "arms"]
    rows = []
    for key, words in (("predicted", "measured curve"), ("predicted_textbook", "textbook")):
        errors = [abs(arm[key] / arm["speedup"] - 1) for arm in arms]
        rows.append([words, "", f"{median(errors):.1%}", f"{max(errors):.1%}", str(len(arms))])
    return markdown(header, rows)


def curve_table() -> str:
    """T(k)/T(1) of both sides, and its meaning in words."""
    header = ["model", "T(1)", *(f"k = {width}" for width in WIDTHS[1:])]
    profiles = {label: read_profile(file_of("curve", label)) for label in VERIFIERS}
    curves = {f"1.5B {label}": profile.verifier for label, profile in profiles.items()}
    drafter = profiles["F16"].drafter
    assert drafter is not None
    curves["0.5B Q4_K_M, last row's logits only"] = drafter
    rows = [
        [name, f"{1000 * curve(1):.1f} ms", *(f"{curve(w) / curve(1):.2f}" for w in WIDTHS[1:])]
        for name, curve in curves.items()
    ]
    words = "".join(
        f"\n{label}: {' '.join(explain(profile))}\n" for label, profile in profiles.items()
    )
    return commands_of("curve") + markdown(header, rows) + words


def time_table() -> str:
    """The shares of time for the arms of the gamma table."""
    parts = ["draft", "verify", "rollback", "core", "other"]
    rows = [
        [label, drafting(arm), *(f"{arm['time'][p] / arm['time']['total']:.1%}" for p in parts)]
        for label, arm in arms_of("gamma")
    ]
    return markdown(["verifier", "arm", *parts], rows)


def auto_table() -> str:
    """`--gamma auto` with a draft model."""
    return "\n".join(auto_part(*part) for part in AUTO_PARTS)


def lookup_table() -> str:
    """`--gamma auto` with lookup drafts."""
    return "\n".join(auto_part(*part) for part in LOOKUP_PARTS)


def auto_part(name: str, words: str) -> str:
    """One record of scripts/measure_auto.py."""
    record = measure_auto.read(RECORDS / f"auto-{name}.json")
    return f"{words}{record.words()}:\n\n{record.table()}"


def ablation_table() -> str:
    """What each part of `--gamma auto` is worth."""
    record = json.loads((RECORDS / "parts-of-auto.json").read_text(encoding="utf-8"))
    groups = list(record["best_fixed"])

    def row(name: str, found: Record) -> Row:
        worst = max(found.values(), key=lambda group: float(group["worst"]))
        cells = (percent(group["mean"] - 1, group["error"]) for group in found.values())
        return [name, f"{worst['worst']:.2f}: {worst['worst_case']}", *cells]

    def percent(more: float, error: float) -> str:
        unsure = f" ± {100 * error:.1f}" if error >= 0.005 else ""
        return "-" if abs(more) < 0.0005 and not unsure else f"{100 * more:+.1f}{unsure}"

    rows = [row(name, found) for name, found in record["parts"].items()]
    best = row("(all parts, against the best fixed gamma)", record["best_fixed"])
    return markdown(["without", "worst world", *groups], [best, *rows])


def busy_table() -> str:
    """Plain decoding beside other programs."""
    return measure_busy.table(measure_busy.read())


def machine_table() -> str:
    """The machine and versions behind the measurements."""
    record = json.loads(file_of("gamma", "F16").read_text(encoding="utf-8"))["provenance"]
    machine, versions = record["machine"], record["versions"]
    facts = {
        "processor": f"{machine['processor']}, {machine['logical_cores']} logical cores",
        "memory": f"{machine['memory_gib']} GiB",
        "specx, Python, NumPy": ", ".join(versions.values()),
        "llama.cpp": ", ".join(
            f"{key} {value}"
            for key, value in record["backends"]["llamacpp"].items()
            if isinstance(value, str) and key != "system_info"
        ),
        "date": record["when"][:10],
        "peak memory": f"{record['peak_memory_mib']:,} MiB, model files included",
    }
    return markdown(["", ""], [[name, value] for name, value in facts.items()])


TABLES: dict[str, Callable[[], str]] = {
    "machine": machine_table,
    "curve": curve_table,
    "cache": cache_table,
    "gamma": gamma_table,
    "time": time_table,
    "temperature": temperature_table,
    "kind": kind_table,
    "prediction": prediction_table,
    "auto": auto_table,
    "lookup": lookup_table,
    "ablation": ablation_table,
    "compare": compare_tables,
    "peers": peers_table,
    "rules": rules_table,
    "servers": compare_table,
    "alternate": alternate_table,
    "busy": busy_table,
}

if __name__ == "__main__":
    raise SystemExit(main())
