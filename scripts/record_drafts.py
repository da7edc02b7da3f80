"""Records a real drafter's proposals at every position of a text, for tests of `--gamma auto`.

    scripts/record_drafts.py VERIFIER.gguf DRAFTER.gguf -o tests/recorded_drafts.json

At temperature 0 the text does not depend on the drafter, so one record serves every schedule: it
holds the number of accepted tokens, and the drafter's confidence in each.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specx import LoadOptions, Pair, SamplingParams, Session, Settings, Stop, get_backend
from specx.bench.profiling import encode_prompt
from specx.bench.suites import suite
from specx.drafters.base import POSITIONS
from specx.drafters.model import ModelDrafter
from specx.output import OutputFile
from specx.schedule.margin import margin_of

MOST_STEPS = 16
"""Tokens of a draft: auto lets a model propose no more."""
GREEDY = Settings(sampling=SamplingParams(temperature=0.0))


def main() -> None:
    """Record, and write the file at the end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("model_draft")
    parser.add_argument("--suite", default="all:1")
    parser.add_argument("-n", type=int, default=96, help="places a prompt")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    file, load, prompts = OutputFile(options.output), get_backend("llamacpp").load, {}
    with (
        load(options.model, LoadOptions()) as verifier,
        load(options.model_draft, LoadOptions()) as drafter,
    ):
        pair = Pair(verifier, drafter)
        for prompt in suite(options.suite):
            tokens = encode_prompt(verifier.tokenizer, prompt.text, raw=False)
            prompts[prompt.id] = record(pair, tokens, options.n)
            print(prompt.id, flush=True)
    names = {"verifier": Path(options.model).name, "drafter": Path(options.model_draft).name}
    lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in prompts.items())
    file.write(f'{{"models": {json.dumps(names)},\n "prompts": {{\n{lines}}}}}\n')


def record(pair: Pair, tokens: list[int], n: int) -> dict[str, list[int] | list[list[int]]]:
    """Drafts at `n` places after a prompt: how many tokens stay, and margins in nats / 100."""
    stays, margins, start = [], [], len(tokens)
    stop = Stop(pair.verifier.tokenizer, n + len(POSITIONS), ignore_eos=True)
    with Session(Pair(pair.verifier)) as alone:
        rounds = alone.rounds(tokens, GREEDY, stop)
        for _ in rounds:
            pass
    text = [*tokens, *rounds.result.tokens]
    with Session(pair) as session:
        (drafter,) = session.drafters(GREEDY)
        assert isinstance(drafter, ModelDrafter)
        for place in range(start, start + n):
            proposed, sure = draft(drafter, text[:place])
            agree = [a == b for a, b in zip(proposed, text[place:], strict=False)]
            stays.append([*agree, False].index(False))
            margins.append(sure)
    return {"stays": stays, "margins": margins}


def draft(drafter: ModelDrafter, tokens: list[int]) -> tuple[list[int], list[int]]:
    """The most tokens that auto would draft, and the margin of each."""
    model, proposed, margins = drafter.model, list[int](), list[int]()
    for _ in POSITIONS:
        text = [*tokens, *proposed]
        rows = model.forward(text[model.n_past :], 1)
        drafter.reader.mask(rows)
        margins.append(round(100 * margin_of(rows[-1])))
        proposed.append(int(rows[-1].argmax()))
    drafter.truncate(len(tokens))
    return proposed, margins


if __name__ == "__main__":
    main()
