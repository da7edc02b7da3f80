"""Plain decoding next to other programs, by the time a waiting thread spins before it sleeps.

    scripts/measure_busy.py --models models/test            # writes docs/benchmarks/busy.json
    scripts/measure_busy.py --models models/test --spins 300000,10000,1000,0 -o /tmp/spins.json

Three loads, made here: none, two busy processes, and a second specx that decodes at the same time.
libgomp reads its setting when it is loaded, so each setting has processes of its own; they take
turns, in an order that changes with every repetition. Needs a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from specx import LoadOptions, Pair, SamplingParams, Session, Settings, Stop, get_backend
from specx.records.markdown import markdown_table
from specx.runtime.machine import provenance
from specx_backends.openmp import SPINS

RECORD = Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "busy.json"
FORMAT = 1
LIBGOMP = "300000"
"""libgomp's own default, about three milliseconds."""
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
QWEN = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
LONGEST = 5.0
"""Seconds of a run: under load the slowest setting writes less than a token per second."""
MODELS = (("llamacpp", SMOLLM2), ("llamacpp", QWEN), ("hf", SMOLLM2))
LOADS = ("nothing", "two busy processes", "a second specx")
PROMPT = "Write a Python function that counts the words of a text."

Record = dict[str, Any]


def main() -> None:
    """Measure, write the record and print its table; or be one of the processes measured."""
    options = parse_options()
    if options.worker:
        return work(*options.worker)
    spins = options.spins.split(",")
    record: Record = {
        "specx_busy": FORMAT,
        "settings": {"spins": spins, "n": options.n, "repetitions": options.r},
        "provenance": provenance({}, [backend for backend, _ in MODELS], sys.argv),
        "runs": [],
    }
    for backend, model in MODELS:
        for run in measured(backend, options.models / model, spins, options.n, options.r):
            record["runs"].append({"backend": backend, "model": model, **run})
            print(*record["runs"][-1].values(), flush=True)
            options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(record))
    return None


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, help="the folder of the models")
    parser.add_argument("--spins", default=f"{LIBGOMP},{SPINS}", help="values of GOMP_SPINCOUNT")
    parser.add_argument("-n", type=int, default=32, help="most tokens per run")
    parser.add_argument("-r", type=int, default=5, help="repetitions")
    parser.add_argument("-o", "--output", type=Path, default=RECORD)
    parser.add_argument("--worker", nargs=2, metavar=("BACKEND", "MODEL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not (options.worker or options.models):
        parser.error("--models is missing: the folder of the models")
    return options


def work(backend: str, model: str) -> None:
    """Decode as many tokens as each line of standard input says; answer with tokens per second."""
    with get_backend(backend).load(model, LoadOptions(n_ctx=1024)) as verifier:
        prompt = verifier.tokenizer.encode(PROMPT, add_special=True, parse_special=False)
        print("ready", flush=True)
        for line in sys.stdin:
            print(speed(Pair(verifier), prompt, int(line)), flush=True)


def speed(pair: Pair, tokens: list[int], n: int) -> float:
    """Tokens per second of decoding alone, greedy, without a draft."""
    stop = Stop(pair.verifier.tokenizer, n, ignore_eos=True)
    settings = Settings(sampling=SamplingParams(temperature=0), gamma=0)
    with Session(pair) as session, closing(session.rounds(tokens, settings, stop)) as rounds:
        for _ in rounds:
            if rounds.generation.tally.times.verify > LONGEST:
                break
    return rounds.result.tok_s or 0.0


class Worker:
    """A process with a model loaded under one setting."""

    def __init__(self, backend: str, model: Path, spins: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", backend, str(model)],
            env={**os.environ, "GOMP_SPINCOUNT": spins},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answer()

    def ask(self, n: int) -> None:
        """Have it decode `n` tokens."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{n}\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit("a process that decodes has died; its last words are above")
        return line

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=60)


def measured(
    backend: str, model: Path, spins: list[str], n: int, repetitions: int
) -> Iterator[Record]:
    """All runs of one model."""
    with ExitStack() as stack:
        pairs = {each: [Worker(backend, model, each) for _ in range(2)] for each in spins}
        for worker in [worker for pair in pairs.values() for worker in pair]:
            stack.callback(worker.close)
            worker.ask(n)  # to warm up
            worker.answer()
        for repetition in range(repetitions):
            for load in LOADS:
                for i in np.random.default_rng([repetition, len(load)]).permutation(len(spins)):
                    tok_s = under(load, pairs[spins[i]], n)
                    yield {"load": load, "spins": spins[i], "repetition": repetition,
                           "tok_s": round(tok_s, 3)}  # fmt: skip


def under(load: str, workers: list[Worker], n: int) -> float:
    """Tokens per second under a load: of one run, or the mean of two at the same time."""
    running = workers if load == LOADS[2] else workers[:1]
    with busy(2 if load == LOADS[1] else 0):
        for worker in running:
            worker.ask(n)
        return sum(float(worker.answer()) for worker in running) / len(running)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that only count."""
    others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def spin() -> None:
    """Keep a core busy."""
    while True:
        pass


def read(path: Path = RECORD) -> Record:
    """A record, as it was written."""
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    if record.get("specx_busy") != FORMAT:
        raise SystemExit(f"{path} is not a record of scripts/measure_busy.py; name another with -o")
    return record


def table(record: Record) -> str:
    """Median tokens per second by model, load and setting; each setting over the first."""
    first, *others = record["settings"]["spins"]
    header = ["model", "beside", f"tok/s, {first} spins"]
    header += [f"{spins} spins" for spins in others] + [f"{s} / {first}" for s in others]
    rows = [header]
    for backend, model in dict.fromkeys((r["backend"], r["model"]) for r in record["runs"]):
        for load in LOADS:
            speeds = {
                spins: [
                    run["tok_s"]
                    for run in record["runs"]
                    if (run["backend"], run["model"], run["load"], run["spins"])
                    == (backend, model, load, spins)
                ]
                for spins in (first, *others)
            }
            if not all(speeds.values()):
                continue  # still being measured
            cells = [f"{median(each):.1f}" for each in speeds.values()]
            cells += [ratio(speeds[spins], speeds[first]) for spins in others]
            rows.append([f"{model.split('-instruct')[0].split('-Instruct')[0]}, {backend}",
                         load, *cells])  # fmt: skip
    return markdown_table(rows, figures=header[2:])


def ratio(speeds: list[float], base: list[float]) -> str:
    """The median of the repetitions' ratios, and their range."""
    ratios = [a / b for a, b in zip(speeds, base, strict=False)]
    return f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
