"""Check the demo pair's files on llama.cpp and transformers, and add the findings to its card.

python scripts/check_demo_pair.py    # reads and completes models/demo
"""

from __future__ import annotations

import argparse
import ast
import json
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo_pair.card import Card, write_card
from specx import LoadOptions, LogitsBackend, SamplingParams, get_backend
from specx.core.sampling import distribution

FOLDER = Path(__file__).resolve().parent.parent / "models" / "demo"
VERIFIER, DRAFTER = "specx-demo-verifier.gguf", "specx-demo-drafter.gguf"
SIGNATURES = """
    fibonacci(n) read_file(path) parse_args(argv) count_words(text) is_prime(n) merge(left, right)
    find(items, key) write_lines(stream, lines) get_name(obj) flatten(items) split_path(path)
    main(argv) load_config(filename) check_type(value, kind) close(connection) encode(data)
    remove_duplicates(values) format_date(year, month, day) send(sock, message) compare(a, b)
"""
PROMPTS = [f"def {name.strip()}):" for name in SIGNATURES.split(")") if name.strip()]
SAMPLING = SamplingParams(temperature=0.7, top_p=0.9)
COMPLETION_TOKENS = 128
SAMPLE = '''"""Naïve example."""

class Stack(list):
\tdef push(self, item):  # 12345
\t\treturn self.append(item)


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
'''


def main() -> None:
    """Check both models and write the card again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    folder: Path = parser.parse_args().folder
    card: Card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    card["runtime"] = findings(folder)
    write_card(folder, card)
    print("\n".join(f"{title}: {value}" for title, value in card["runtime"].items()))


def findings(folder: Path) -> Card:
    """The findings under 'On the runtimes' in the card."""
    llama = get_backend("llamacpp")
    paths = (folder / VERIFIER, folder / DRAFTER)
    verifier, drafter = (llama.load(str(path), LoadOptions(threads=1)) for path in paths)
    gap = max(
        logits_gap(model, path) for model, path in zip((verifier, drafter), paths, strict=True)
    )
    cost, draft_cost = milliseconds_a_token((verifier, drafter))
    parsed = sum(parses(complete(verifier, prompt, seed)) for seed, prompt in enumerate(PROMPTS))
    return {
        "largest difference of a logit between llama.cpp and transformers": f"{gap:.4f}",
        "cost of a token on llama.cpp, drafter over verifier, one thread": (
            f"{draft_cost / cost:.2f} ({draft_cost:.2f} and {cost:.2f} ms where this was checked)"
        ),
        f"completions of {len(PROMPTS)} `def name(args):` prompts that parse as Python": (
            f"{parsed} (temperature {SAMPLING.temperature}, top-p {SAMPLING.top_p}, "
            f"{COMPLETION_TOKENS} tokens, cut to the last whole line)"
        ),
    }


def logits_gap(model: LogitsBackend, path: Path) -> float:
    """Largest absolute difference between the runtimes' logits over a text, in nats."""
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    ids = model.tokenizer.encode(SAMPLE, add_special=True, parse_special=False)
    other_ids = AutoTokenizer.from_pretrained(**where)(SAMPLE)["input_ids"]
    if ids != other_ids:
        raise SystemExit(f"{path.name}: llama.cpp reads {ids}, transformers {other_ids}")
    other = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    with torch.no_grad():
        rows = other(torch.tensor([ids])).logits[0].numpy()
    model.truncate(0)
    return float(np.abs(model.forward(ids, len(ids)) - rows).max())


def milliseconds_a_token(models: tuple[LogitsBackend, ...]) -> list[float]:
    """Median cost of one more token after a hundred, the models' turns interleaved."""
    times: list[list[float]] = [[] for _ in models]
    for model in models:
        model.truncate(0)
        model.forward(range(100), 0)
    for _ in range(400):
        for model, spent in zip(models, times, strict=True):
            started = time.perf_counter()
            model.forward([model.n_past])
            spent.append(1e3 * (time.perf_counter() - started))
    return [median(spent) for spent in times]


def complete(model: LogitsBackend, prompt: str, seed: int) -> str:
    """The prompt and what `model` draws after it, up to the last whole line."""
    random = np.random.default_rng(seed)
    tokens = model.tokenizer.encode(prompt, add_special=True, parse_special=False)
    text = prompt.encode()
    model.truncate(0)
    row = model.forward(tokens)[0]
    for _ in range(COMPLETION_TOKENS):
        token = distribution(row, SAMPLING).draw(random.random())
        if token in model.tokenizer.eog_ids:
            return text.decode(errors="replace")
        text += model.tokenizer.token_bytes(token)
        row = model.forward([token])[0]
    return text[: text.rfind(b"\n") + 1].decode(errors="replace")


def parses(text: str) -> bool:
    """True if a text parses as Python."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


if __name__ == "__main__":
    main()
