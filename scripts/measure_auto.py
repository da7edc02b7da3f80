"""`--gamma auto` against fixed gammas: temperature 0, so that every arm writes the same text.

    scripts/measure_auto.py -m VERIFIER.gguf -md DRAFTER.gguf --profile P.json -o auto.json
    scripts/measure_auto.py -m VERIFIER.gguf --draft lookup --gamma 0,auto -o l.json

It is one `specx bench` command, which resumes: the options are its own, and override DEFAULTS. The
best fixed gamma is chosen on one repetition and scored on the others, each in turn. The tables of
docs/benchmarks.md come from such files, and from those of this script's own form ("specx_auto")
that it wrote before `specx bench` knew auto.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from specx.bench import Arm, Results, read_results
from specx.bench import Run as BenchRun
from specx.bench.speedup import median_speedup
from specx.records.markdown import markdown_table

DEFAULTS = "--gamma 0,1,2,3,4,6,8,auto --temp 0 -n 96 -r 3 --ignore-eos --resume".split()
AUTO, PLAIN = "auto", "0"
FORMAT = 1

Run: TypeAlias = "dict[str, Any]"
Key: TypeAlias = "tuple[str, str, int]"
"""Prompt, arm, repetition."""
Ratios: TypeAlias = "dict[str, list[float]]"
"""By prompt, one per repetition."""


def main() -> int:
    """Measure the missing runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("-o", "--output", type=Path, required=True, help="FILE.json, resumed")
    options, others = parser.parse_known_args()
    words = ["bench", *DEFAULTS, "-o", str(options.output), *others]
    print("specx", *words, file=sys.stderr)
    code = subprocess.run([sys.executable, "-m", "specx", *words]).returncode
    if not code:
        print(read(options.output).table())
    return code


def read(path: Path) -> Record:
    """Read a record, in either of the two forms."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if data.get("specx_auto") == FORMAT:
        runs = {(run["prompt"], run["arm"], run["repetition"]): run["run"] for run in data["runs"]}
        return Record(data["settings"], runs)
    if "specx_bench" not in data:
        raise SystemExit(f"{path} is not a record of scripts/measure_auto.py; name another with -o")
    return record_of(read_results(path), path)


def record_of(results: Results, path: Path) -> Record:
    """Results of `specx bench`: one sampler, fixed gammas, and one arm of auto."""
    names = [str(arm.gamma) for arm in results.runs]
    if not results.complete or sorted(names) != sorted({*names, PLAIN, AUTO}):
        raise SystemExit(
            f"{path} is incomplete, or has not one arm for each of 0, auto and some fixed gammas; "
            "measure it with scripts/measure_auto.py"
        )
    runs = {
        (run.prompt, str(arm.gamma), run.repetition): run_of(run)
        for arm, its_runs in results.runs.items()
        for run in its_runs
    }
    return Record(settings_of(results, next(iter(results.runs))), runs)


def settings_of(results: Results, arm: Arm) -> dict[str, Any]:
    """How it was measured."""
    sweep = results.provenance["sweep"]
    return {
        "draft_dtype": sweep["options"].get("dtype_draft"),
        "costs": "profile" if "profile" in sweep else "table",
        "live": True,
        "gammas": [str(each.gamma) for each in results.runs if each.gamma != AUTO],
        "temperature": arm.sampling.temperature,
        "n": results.n,
        "repetitions": sweep["repetitions"],
    }


def run_of(run: BenchRun) -> Run:
    """One run, in this script's own form."""
    return {
        "tok_s": run.tok_s,
        "rounds": run.tally.rounds,
        "text": run.text_crc,
        "gammas": {
            who: {str(gamma): n for gamma, n in counts.items()}
            for who, counts in run.gammas.items()
        },
    }


class Record:
    """What was measured."""

    def __init__(self, settings: dict[str, Any], runs: dict[Key, Run]) -> None:
        self.settings = settings
        self.runs = runs
        self.prompts = list(dict.fromkeys(prompt for prompt, _, _ in runs))

    def speeds(self, prompt: str, arm: str) -> list[float]:
        """Tokens per second, one value per repetition."""
        repetitions = range(self.settings["repetitions"])
        return [self.runs[prompt, arm, i]["tok_s"] for i in repetitions]

    def best(self, prompt: str) -> list[str]:
        """The fixed gamma that was fastest in each repetition."""
        speeds = {arm: self.speeds(prompt, arm) for arm in self.settings["gammas"]}
        repetitions = range(self.settings["repetitions"])
        return [max(speeds, key=lambda arm: speeds[arm][i]) for i in repetitions]

    def against_best(self, prompt: str) -> list[float]:
        """Auto over the gamma that was best in the other repetitions, one ratio per repetition."""
        best, auto = self.best(prompt), self.speeds(prompt, AUTO)
        ratios = []
        for i, speed in enumerate(auto):
            others = [j for j in range(len(auto)) if j != i] or [i]
            ratios.append(median(speed / self.speeds(prompt, best[j])[i] for j in others))
        return ratios

    def against_plain(self, prompt: str) -> list[float]:
        """Auto over the verifier alone."""
        pairs = zip(self.speeds(prompt, AUTO), self.speeds(prompt, PLAIN), strict=True)
        return [auto / plain for auto, plain in pairs]

    def same_text(self) -> bool:
        """True if all arms of each prompt wrote the same text."""
        texts = defaultdict(set)
        for (prompt, _, _), run in self.runs.items():
            texts[prompt].add(run["text"])
        return all(len(each) == 1 for each in texts.values())

    def words(self) -> str:
        """How it was measured."""
        known = self.settings
        costs = "a profile" if known["costs"] == "profile" else "the shipped table"
        live = ", corrected by live timings" if known["live"] else ", no live timings"
        text = "" if self.same_text() else ", texts that differ between the arms"
        times = known["repetitions"]
        repetitions = "one repetition" if times == 1 else f"{times} repetitions"
        dtype = known.get("draft_dtype")
        drafter = f"drafter in {dtype}, " if dtype else ""
        return (
            f" ({drafter}{known['n']} tokens, temperature {known['temperature']:g}, "
            f"arms interleaved, {repetitions}, costs from {costs}{live}{text})"
        )

    def table(self) -> str:
        """Auto against the best fixed gamma and against the verifier alone, by kind and over all.

        Without a fixed gamma but 0, the comparison with the best of them is left out.
        """
        fixed = self.settings["gammas"] != [PLAIN]
        header = ["kind", "best fixed gamma", "auto / best fixed", "auto / alone", "auto drafted"]
        rows = [header]
        for prompt in self.prompts:
            rows.append([prompt, *self._row([prompt], fixed), self._drafted([prompt])])
        rows.append(["**all**", *self._row(self.prompts, fixed), self._drafted(self.prompts)])
        if not fixed:
            rows = [[row[0], *row[3:]] for row in rows]
        return markdown_table(rows, figures=header[2:4])

    def _row(self, prompts: list[str], fixed: bool) -> list[str]:
        best = sorted({arm for prompt in prompts for arm in self.best(prompt)}, key=int)
        over_best = {prompt: self.against_best(prompt) for prompt in prompts}
        over_plain = {prompt: self.against_plain(prompt) for prompt in prompts}
        return [", ".join(best) if fixed else "", interval(over_best), interval(over_plain)]

    def _drafted(self, prompts: list[str]) -> str:
        """The number of rounds by draft length."""
        rounds, drafts, proposed = 0, 0, 0
        for prompt in prompts:
            for i in range(self.settings["repetitions"]):
                run = self.runs[prompt, AUTO, i]
                rounds += run["rounds"]
                for counts in run["gammas"].values():
                    drafts += sum(n for g, n in counts.items() if g != PLAIN)
                    proposed += sum(int(g) * n for g, n in counts.items())
        if not drafts:
            return "nothing"
        return f"{proposed / drafts:.1f} tokens in {drafts / rounds:.0%} of rounds"


def interval(ratios: Ratios) -> str:
    """The median over prompts, and its interval; over repetitions where there is one prompt."""
    found = median_speedup(ratios)
    assert found is not None
    return str(found)


if __name__ == "__main__":
    raise SystemExit(main())
