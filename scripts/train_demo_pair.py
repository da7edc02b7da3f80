"""Train the demo pair: two small models of Python source, written as GGUF with a model card.

The text is the standard library of the interpreter that runs this script. The verifier learns
from the text, the drafter from the verifier's distributions over it. A run that was killed
continues from its last checkpoint when started again with the same options.

    python scripts/train_demo_pair.py            # about an hour and a half on two cores
    python scripts/train_demo_pair.py --smoke    # a handful of steps, the same path
"""

from __future__ import annotations

import argparse
import hashlib
import math
import platform
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from demo_pair.card import Card, write_card
from demo_pair.corpus import (
    LEFT_OUT_TABLES,
    Corpus,
    Ids,
    functions,
    read_corpus,
    token_stream,
    train_tokenizer,
)
from demo_pair.evaluate import nats_per_token, score
from demo_pair.export import write_gguf
from demo_pair.model import Llama, Shape
from demo_pair.training import LossOf, Plan, Progress, train

ROOT = Path(__file__).resolve().parent.parent
VERIFIER_SHAPE: dict[str, int] = {"layers": 5, "width": 256, "heads": 2, "hidden": 704}
DRAFTER_SHAPE: dict[str, int] = {"layers": 2, "width": 128, "heads": 2, "hidden": 384}
SMOKE_FILES = 60
SMOKE_CHARACTERS = 4000
SMOKE_STEPS = 1
VERIFIER_STEPS = 900
PRACTICE_STEPS = 500
DRAFTER_STEPS = 4800
TEMPERATURE = 0.7


@dataclass(frozen=True)
class Trained:
    """A model and the history of its training."""

    model: Llama
    progress: Progress


Pair = dict[str, Trained]


@dataclass(frozen=True)
class Data:
    """The corpus as both models see it."""

    corpus: Corpus
    tokenizer: Tokenizer
    train: Ids
    practice: Ids
    """The modules again, and their functions as texts of their own."""
    held_out: Ids

    @property
    def held_out_bytes(self) -> int:
        """Bytes of UTF-8 behind the held-out tokens."""
        return sum(len(file.text.encode()) for file in self.corpus.held_out)


def main() -> None:
    """Train, evaluate and write the pair."""
    options = parse_options()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    data = prepare(options)
    verifier, learning = train_verifier(options, data)
    learning = learning.then(practise(options, data, verifier))
    drafter, imitation = train_drafter(options, data, verifier)
    pair = {"verifier": Trained(verifier, learning), "drafter": Trained(drafter, imitation)}
    export(options.out, data.tokenizer, pair)
    write_card(options.out, describe(options, data, pair))


def parse_options() -> argparse.Namespace:
    """Read the command line; `--smoke` only lowers defaults."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "models" / "demo")
    parser.add_argument("--work-dir", type=Path, help="checkpoints; .cache/demo-pair by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verifier-steps", type=int)
    parser.add_argument("--practice-steps", type=int)
    parser.add_argument("--drafter-steps", type=int)
    parser.add_argument("--threads", type=int, help="torch's own choice by default")
    parser.add_argument("--float32", action="store_true", help="no bfloat16 in matrix products")
    parser.add_argument("--smoke", action="store_true", help="a few files and steps, to test this")
    options = parser.parse_args()
    name = "demo-pair-smoke" if options.smoke else "demo-pair"
    options.work_dir = options.work_dir or ROOT / ".cache" / name
    return options


def prepare(options: argparse.Namespace) -> Data:
    """Read the corpus and turn it into tokens."""
    corpus = read_corpus(options.seed)
    if options.smoke:
        corpus = corpus.openings(SMOKE_FILES, SMOKE_CHARACTERS)
    tokenizer = train_tokenizer(corpus.train)
    train_ids = token_stream(tokenizer, corpus.train)
    mixed = [*corpus.train, *functions(corpus.train, options.seed)]
    np.random.default_rng(options.seed).shuffle(mixed)
    practice = token_stream(tokenizer, tuple(mixed))
    held_out = token_stream(tokenizer, corpus.held_out)
    sizes = f"{len(train_ids):,} tokens to train on, {len(practice):,} with functions"
    print(f"{sizes}, {len(held_out):,} held out", flush=True)
    return Data(corpus, tokenizer, train_ids, practice, held_out)


def train_verifier(options: argparse.Namespace, data: Data) -> tuple[Llama, Progress]:
    """Train the larger model on the text."""
    steps = options.verifier_steps or (SMOKE_STEPS if options.smoke else VERIFIER_STEPS)
    return train_one("verifier", VERIFIER_SHAPE, text_loss, Plan(steps), options, data)


def practise(options: argparse.Namespace, data: Data, verifier: Llama) -> Progress:
    """Continue with functions among the modules, so that it completes the beginning of one."""
    steps = options.practice_steps or (SMOKE_STEPS if options.smoke else PRACTICE_STEPS)
    plan = Plan(steps, opened=False, decay_share=0.6)
    return train_one(
        "verifier-practice", VERIFIER_SHAPE, text_loss, plan, options, data, start=verifier
    )[1]


def train_drafter(
    options: argparse.Namespace, data: Data, verifier: Llama
) -> tuple[Llama, Progress]:
    """Train the smaller model on the verifier's distributions over the same text."""
    steps = options.drafter_steps or (SMOKE_STEPS if options.smoke else DRAFTER_STEPS)

    def loss(model: Llama, inputs: Tensor, _targets: Tensor) -> Tensor:
        with torch.no_grad():
            target = verifier(inputs)
        return distillation_loss(target, model(inputs))

    # A whole distribution at each position says more than one token: smaller steps, and more.
    plan = Plan(steps, tokens_per_step=2048, evaluate_every=400, opened=False)
    return train_one("drafter", DRAFTER_SHAPE, loss, plan, options, data, verifier)


def train_one(
    name: str,
    sizes: dict[str, int],
    loss: LossOf,
    plan: Plan,
    options: argparse.Namespace,
    data: Data,
    teacher: Llama | None = None,
    start: Llama | None = None,
) -> tuple[Llama, Progress]:
    """Train one model from the seed or from `start`, or from its checkpoint in the work folder.

    Windows come from the modules alone, or with their functions where these are not all `opened`.
    """
    torch.manual_seed(options.seed)
    shape = Shape(**sizes, vocabulary=data.tokenizer.get_vocab_size())
    identity = " ".join((str(options.seed), str(shape), data.corpus.digest))

    # Entered anew for each step: autocast keeps its copies of the weights until it is left.
    mixed = partial(torch.autocast, "cpu", torch.bfloat16, enabled=not options.float32)

    def step_loss(model: Llama, inputs: Tensor, targets: Tensor) -> Tensor:
        with mixed():
            return loss(model, inputs, targets)

    def held_out_nats(model: Llama) -> float:
        with mixed():
            return nats_per_token(model, data.held_out, plan.short_context)

    model = Llama(shape) if start is None else start
    for given in (teacher, start):
        identity += "" if given is None else f" {fingerprint(given)}"
    stream = data.train if plan.opened else data.practice
    progress = train(
        name, model, step_loss, held_out_nats, stream, plan,
        seed=options.seed, identity=identity, folder=options.work_dir,
    )  # fmt: skip
    return model, progress


def text_loss(model: Llama, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean negative log-likelihood of the text, in nats per token."""
    return functional.cross_entropy(model(inputs).float().flatten(0, 1), targets.flatten())


def distillation_loss(target: Tensor, draft: Tensor) -> Tensor:
    """Kullback-Leibler divergence in nats, plus the chance of a rejection, a mean over positions.

    The first teaches the whole distribution; the second is what a drafter is judged by, at the
    temperature that it is mostly used at.
    """
    target, draft = target.float().flatten(0, 1), draft.float().flatten(0, 1)
    expected, found = target.log_softmax(-1), draft.log_softmax(-1)
    divergence = functional.kl_div(found, expected, reduction="batchmean", log_target=True)
    common = torch.minimum((target / TEMPERATURE).softmax(-1), (draft / TEMPERATURE).softmax(-1))
    return divergence + 1 - common.sum(-1).mean()


def fingerprint(model: Llama) -> str:
    """SHA-256 over a model's weights."""
    hasher = hashlib.sha256()
    for tensor in model.state_dict().values():
        hasher.update(tensor.numpy().tobytes())
    return hasher.hexdigest()


def gguf_path(folder: Path, name: str) -> Path:
    """Where the model of that role is written."""
    return folder / f"specx-demo-{name}.gguf"


def export(folder: Path, tokenizer: Tokenizer, pair: Pair) -> None:
    """Write both models as GGUF."""
    for name, trained in pair.items():
        title = f"specx demo {name}"
        write_gguf(gguf_path(folder, name), title, trained.model, tokenizer)


def describe(options: argparse.Namespace, data: Data, pair: Pair) -> Card:
    """Score the pair on the held-out text, in float32, and gather all that the card says."""
    print("evaluating on held-out text", flush=True)
    verifier, drafter = pair["verifier"].model, pair["drafter"].model
    window = (verifier.shape.context, verifier.shape.context // 2)
    scores = score(verifier, drafter, data.held_out, *window)
    models = {
        name: describe_model(gguf_path(options.out, name), trained, scores.nats[name], data)
        for name, trained in pair.items()
    }
    return {
        "seed": options.seed,
        "models": models,
        "agreement": scores.agreement,
        "corpus": describe_corpus(data, window),
        "versions": {name: version(name) for name in ("torch", "tokenizers", "gguf", "numpy")},
    }


def describe_model(path: Path, trained: Trained, nats: float, data: Data) -> Card:
    """The card's entry for one model."""
    model, progress = trained.model, trained.progress
    return {
        "file": path.name,
        "megabytes": round(path.stat().st_size / 1e6, 2),
        "parameters": model.n_parameters,
        "shape": f"{model.shape.layers} x {model.shape.width}",
        "tokens_seen": progress.tokens,
        "minutes": round(progress.seconds / 60, 1),
        "nats_per_token": round(nats, 4),
        "bits_per_byte": round(bits_per_byte(nats, data), 4),
        "curve": progress.curve,
    }


def bits_per_byte(nats: float, data: Data) -> float:
    """Convert nats per held-out token into bits per byte, including the cost of end-of-text ids."""
    return nats * (len(data.held_out) - 1) / math.log(2) / data.held_out_bytes


def describe_corpus(data: Data, window: tuple[int, int]) -> Card:
    """The card's description of the text."""
    corpus = data.corpus
    n_bytes = sum(len(file.text.encode()) for file in corpus.train)
    return {
        "python": platform.python_version(),
        "train_files": len(corpus.train),
        "train_tokens": len(data.train),
        "bytes_per_token": round(n_bytes / len(data.train), 3),
        "held_out_files": len(corpus.held_out),
        "held_out_bytes": data.held_out_bytes,
        "left_out": ", ".join(sorted(LEFT_OUT_TABLES)),
        "corpus_digest": corpus.digest,
        "context": window[0],
        "half_context": window[1],
        "curve_context": Plan(1).short_context,
    }


if __name__ == "__main__":
    main()
