"""Time of a step of a trimmed drafter beside the whole one's.

    specx trim DRAFTER.gguf -o SMALL.gguf --keep 32000
    scripts/measure_trim.py DRAFTER.gguf SMALL.gguf [-t THREADS] [--json FILE]

A step is one token in, one row of logits out; a drafter's step also draws a token from them (top-p
0.9 at temperature 0.7). The models take turns: each round times some steps of the one and as many
of the other, from the same position, so that a machine that slows down slows both. Prints the
median time of a step of each, and the median over the rounds of their ratio, with the range that
nine of ten rounds lie in.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from specx.core.sampling import SamplingParams, distribution
from specx.runtime.backend import LoadOptions, LogitsBackend
from specx_backends.llamacpp import backend

ROUNDS, STEPS, CONTEXT = 40, 16, 256
SAMPLING = SamplingParams(temperature=0.7, top_p=0.9)
TOKEN = 100
"""Which token is fed does not matter to the time."""


def measure(
    whole: LogitsBackend,
    small: LogitsBackend,
    *,
    draws: bool,
    rounds: int = ROUNDS,
    steps: int = STEPS,
) -> dict[str, float]:
    """Milliseconds of a step, and the ratio small to whole with its 5th and 95th percentile."""
    for model in (whole, small):
        model.truncate(0)
        model.forward([TOKEN] * CONTEXT, 0)
        step_time(model, steps, draws)
    times = np.array(
        [[step_time(model, steps, draws) for model in (whole, small)] for _ in range(rounds)]
    )
    low, ratio, high = np.percentile(times[:, 1] / times[:, 0], [5, 50, 95]).tolist()
    whole_ms, small_ms = (1e3 * np.median(times, axis=0)).tolist()
    return {"whole_ms": whole_ms, "small_ms": small_ms, "ratio": ratio, "low": low, "high": high}


def step_time(model: LogitsBackend, steps: int, draws: bool) -> float:
    """Seconds of one step, over `steps` of them."""
    begin = model.clock()
    for _ in range(steps):
        rows = model.forward([TOKEN])
        if draws:
            distribution(rows[0], SAMPLING).draw(0.5)
    end = model.clock()
    model.truncate(CONTEXT)
    return (end - begin) / steps


def main() -> None:
    """Print, and keep if asked to, what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("whole")
    parser.add_argument("small")
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    options = LoadOptions(n_ctx=CONTEXT + STEPS, threads=given.threads)
    with (
        backend.load(given.whole, options) as whole,
        backend.load(given.small, options) as small,
    ):
        found: dict[str, object] = {"whole": whole.n_vocab, "small": small.n_vocab}
        for name, draws in (("step", False), ("step and draw", True)):
            found[name] = figures = measure(whole, small, draws=draws)
            print(
                f"{name}: whole {figures['whole_ms']:.2f} ms, trimmed {figures['small_ms']:.2f} ms;"
                f" ratio {figures['ratio']:.3f} ({figures['low']:.3f} to {figures['high']:.3f})"
            )
    if given.json:
        given.json.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
