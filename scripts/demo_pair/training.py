"""One training loop for both models: Muon on matrices, AdamW on the rest, resumable."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer

from demo_pair.corpus import Ids
from demo_pair.model import Llama

LossOf = Callable[[Llama, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Plan:
    """The length and learning rates of training; the rates are those of the plateau."""

    steps: int
    tokens_per_step: int = 8192
    matrix_rate: float = 0.015
    other_rate: float = 0.004
    weight_decay: float = 0.1
    warmup_steps: int = 50
    decay_share: float = 1 / 3
    short_context: int = 512
    long_context: int = 1024
    long_share: float = 0.2
    evaluate_every: int = 200
    checkpoint_every: int = 100
    opened: bool = True
    """Whether every window opens with end-of-text, as a text that a runtime is given does."""

    def rate_scale(self, step: int) -> float:
        """Warm up, hold, then fall linearly to nearly zero over the last `decay_share`."""
        warmup = (step + 1) / self.warmup_steps
        decay = (self.steps - step) / max(1.0, self.decay_share * self.steps)
        return min(1.0, warmup, decay)

    def context(self, step: int) -> int:
        """Tokens in a window: attention is half of a long step, so most steps are short."""
        is_long = step >= (1 - self.long_share) * self.steps
        return self.long_context if is_long else self.short_context


@dataclass
class Progress:
    """The progress so far, stored in the checkpoint's header as JSON."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    curve: list[dict[str, float]] = field(default_factory=list)

    def then(self, later: Progress) -> Progress:
        """Both together, one after the other."""
        moved = [point | {"tokens": point["tokens"] + self.tokens} for point in later.curve]
        return Progress(
            self.step + later.step,
            self.tokens + later.tokens,
            self.seconds + later.seconds,
            self.curve + moved,
        )


def window_starts(n_tokens: int, context: int, count: int, step: int, seed: int) -> Iterator[int]:
    """Starts of a step's windows: each epoch visits every window once, in an order of its own."""
    per_epoch = (n_tokens - 1) // context - 1
    for index in range(step * count, (step + 1) * count):
        epoch, place = divmod(index, per_epoch)
        random = np.random.default_rng([seed, context, epoch])
        offset = int(random.integers(context))
        yield offset + context * int(random.permutation(per_epoch)[place])


def draw_batch(stream: Ids, plan: Plan, step: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one step, both (windows, context)."""
    context = min(plan.context(step), (len(stream) - 1) // 2)
    count = max(1, plan.tokens_per_step // context)
    starts = window_starts(len(stream), context, count, step, seed)
    windows = torch.from_numpy(np.stack([stream[i : i + context + 1] for i in starts]))
    inputs, targets = windows[:, :-1].clone(), windows[:, 1:]
    if plan.opened:
        inputs[:, 0] = int(stream[0])
    return inputs, targets


def make_optimizers(model: Llama, plan: Plan) -> dict[str, Optimizer]:
    """Muon for the blocks' matrices; AdamW for the embedding and the norms."""
    matrices = [p for p in model.blk.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return {
        "muon": Muon(matrices, lr=plan.matrix_rate, weight_decay=plan.weight_decay),
        "adamw": AdamW(others, lr=plan.other_rate, betas=(0.9, 0.95), weight_decay=0.0),
    }


def set_rates(optimizers: dict[str, Optimizer], plan: Plan, step: int) -> None:
    """Give both optimizers the step's learning rate."""
    rates = {"muon": plan.matrix_rate, "adamw": plan.other_rate}
    for name, optimizer in optimizers.items():
        for group in optimizer.param_groups:
            group["lr"] = rates[name] * plan.rate_scale(step)


def save_checkpoint(
    path: Path, model: Llama, optimizers: dict[str, Optimizer], progress: Progress, identity: str
) -> None:
    """Write weights, optimizer state and progress as one file, replacing the last one at once."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    for name, optimizer in optimizers.items():
        for index, state in optimizer.state_dict()["state"].items():
            tensors |= {f"{name}/{index}/{key}": value for key, value in state.items()}
    header = {"identity": identity, "progress": json.dumps(asdict(progress))}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".partial")
    save_file({name: value.contiguous() for name, value in tensors.items()}, fresh, header)
    fresh.replace(path)


def load_checkpoint(
    path: Path, model: Llama, optimizers: dict[str, Optimizer], identity: str
) -> Progress:
    """Restore what `save_checkpoint` wrote; a fresh Progress where there is no file."""
    if not path.exists():
        return Progress()
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    if header["identity"] != identity:
        raise SystemExit(f"{path} belongs to another seed, shape or corpus; use another --work-dir")
    prefix = "model/"
    weights = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    model.load_state_dict(weights)
    for name, optimizer in optimizers.items():
        restore_optimizer(optimizer, name, tensors)
    return Progress(**json.loads(header["progress"]))


def restore_optimizer(optimizer: Optimizer, name: str, tensors: dict[str, Tensor]) -> None:
    """Put an optimizer's per-parameter state back; its settings are the plan's."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        owner, _, rest = key.partition("/")
        if owner == name:
            index, _, entry = rest.partition("/")
            state.setdefault(int(index), {})[entry] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def train(
    name: str,
    model: Llama,
    loss_of: LossOf,
    held_out_nats: Callable[[Llama], float],
    stream: Ids,
    plan: Plan,
    *,
    seed: int,
    identity: str,
    folder: Path,
) -> Progress:
    """Train `model` in place, from its checkpoint where there is one; return what was done."""
    optimizers = make_optimizers(model, plan)
    path = folder / f"{name}.safetensors"
    progress = load_checkpoint(path, model, optimizers, identity)
    while progress.step < plan.steps:
        started = time.perf_counter()
        inputs, targets = draw_batch(stream, plan, progress.step, seed)
        set_rates(optimizers, plan, progress.step)
        loss = loss_of(model, inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
        progress.step += 1
        progress.tokens += inputs.numel()
        seconds = time.perf_counter() - started
        progress.seconds += seconds
        report(name, plan, progress, loss.item(), inputs.numel() / seconds)
        if progress.step % plan.evaluate_every == 0 or progress.step == plan.steps:
            note_held_out(name, progress, held_out_nats(model), loss.item())
        if progress.step % plan.checkpoint_every == 0 or progress.step == plan.steps:
            save_checkpoint(path, model, optimizers, progress, identity)
    return progress


def report(name: str, plan: Plan, progress: Progress, loss: float, speed: float) -> None:
    """Print a line every twenty steps: loss in nats per token, tokens per second, time left."""
    if progress.step % 20 and progress.step != plan.steps:
        return
    to_go = (plan.steps - progress.step) * progress.seconds / progress.step / 60
    print(
        f"{name} step {progress.step}/{plan.steps}  loss {loss:.3f}  "
        f"{speed:,.0f} tok/s  {to_go:.1f} min to go",
        flush=True,
    )


def note_held_out(name: str, progress: Progress, nats: float, loss: float) -> None:
    """Add a point to the learning curve."""
    point: dict[str, Any] = {"tokens": progress.tokens, "held_out_nats": round(nats, 4)}
    progress.curve.append(point | {"train_loss": round(loss, 4)})
    print(f"{name} held-out {nats:.4f} nats/token after {progress.tokens:,} tokens", flush=True)
