"""Runs a study: a trace per prompt in a folder, so that a second call runs only what is missing."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specx.bench.profiling import encode_prompt
from specx.bench.suites import Prompt
from specx.core.sampling import SamplingParams
from specx.errors import UsageError
from specx.interrupts import held
from specx.records.trace import GenerationTrace, NoGeneration, Trace, TraceWriter, read_trace
from specx.session.chat import ChatOptions
from specx.session.decoding import Stop
from specx.session.pair import Pair
from specx.session.result import Result
from specx.session.session import Session
from specx.session.settings import Settings
from studies.alike import difference, models_difference

__all__ = ["Plan", "run_study", "traces_of"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The prompts and settings of a study, always under rule token."""

    folder: Path
    prompts: Sequence[Prompt]
    n: int
    """Most tokens written per prompt."""
    gamma: int = 4
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    ignore_eos: bool = False
    raw: bool = False
    """Without the model's chat template."""
    chat: ChatOptions = field(default_factory=ChatOptions)
    """Arguments of the chat template."""

    def settings(self, prompt: Prompt) -> Settings:
        """With the prompt's own seed, the same whatever else is in the study."""
        seed = zlib.crc32(f"{self.seed}/{prompt.id}".encode())
        return Settings(sampling=self.sampling, gamma=self.gamma, rule="token", seed=seed)

    def labels(self, prompt: Prompt) -> dict[str, Any]:
        """The labels of the prompt's trace: its id and kind, and settings that a header lacks."""
        asked = {"template_args": dict(self.chat.arguments)} if self.chat.arguments else {}
        return {
            "id": prompt.id,
            "kind": prompt.kind,
            "n": self.n,
            "ignore_eos": self.ignore_eos,
            **asked,
        }

    def file(self, prompt: Prompt) -> Path:
        """The path of the prompt's trace."""
        name = re.sub(r"[^A-Za-z0-9_-]", "_", prompt.id)[:80]
        return self.folder / f"{name}-{zlib.crc32(prompt.id.encode()):08x}.jsonl"

    def finished(self, prompt: Prompt) -> Trace | None:
        """The prompt's trace, if it is complete; raises as `found`."""
        trace = self.found(prompt)
        return trace if trace is not None and trace.summary is not None else None

    def found(self, prompt: Prompt) -> Trace | None:
        """The prompt's trace, if its run got as far as a header.

        Raises
        ------
        UsageError
            If it was made with other settings, or is a file that this specx cannot read, which is
            left as it is.
        """
        path = self.file(prompt)
        if not path.exists():
            return None
        try:
            trace = read_trace(path)
        except NoGeneration:
            return None
        if differs := difference(_asked(trace), self._asks(prompt)):
            raise UsageError(f"{path} was made with {differs}; choose another folder")
        return trace

    def missing(self) -> list[Prompt]:
        """The prompts without a complete trace."""
        return [prompt for prompt in self.prompts if self.finished(prompt) is None]

    def _asks(self, prompt: Prompt) -> dict[str, Any]:
        settings = self.settings(prompt)
        return {
            **self.labels(prompt),
            **asdict(settings.sampling),
            "prompt": prompt.text,
            "rule": settings.rule,
            "gamma": settings.gamma,
            "seed": settings.seed,
        }


def _asked(trace: Trace) -> dict[str, Any]:
    """The settings that a trace was made with, as `Plan` has its own."""
    header = trace.header
    names = ("prompt", "rule", "gamma", "seed")
    return {
        **header.labels,
        **asdict(header.sampling),
        **{name: getattr(header, name) for name in names},
    }


def run_study(
    plan: Plan,
    pair: Pair,
    provenance: Mapping[str, Any],
    *,
    report: Callable[[int], None] = lambda prompts: None,
) -> None:
    """Run the prompts of `plan` that have no complete trace.

    Parameters
    ----------
    report
        Called with the number of prompts done, including those found complete.

    Raises
    ------
    UsageError
        If the folder holds a trace of other models, or of the prompt as other tokens.
    """
    _require_same(plan, pair, provenance)
    missing = plan.missing()
    done = len(plan.prompts) - len(missing)
    for number, prompt in enumerate(missing, done + 1):
        _run(plan, pair, prompt, provenance)
        report(number)


def _require_same(plan: Plan, pair: Pair, provenance: Mapping[str, Any]) -> None:
    """Refuse a folder that holds traces of other models."""
    for prompt in plan.prompts:
        trace = plan.found(prompt)
        if trace is None:
            continue
        if differs := models_difference(trace.header.provenance, provenance):
            raise UsageError(f"{trace.path} was made with {differs}; choose another folder")
        tokens = encode_prompt(pair.verifier.tokenizer, prompt.text, raw=plan.raw, chat=plan.chat)
        if trace.header.prompt_ids != tokens:
            raise UsageError(
                f"{trace.path} holds the prompt as other tokens, as with another chat template, "
                "template date or --raw; choose another folder"
            )


def _run(plan: Plan, pair: Pair, prompt: Prompt, provenance: Mapping[str, Any]) -> None:
    """Trace one prompt from empty caches."""
    tokenizer = pair.verifier.tokenizer
    tokens = encode_prompt(tokenizer, prompt.text, raw=plan.raw, chat=plan.chat)
    stop = Stop(tokenizer, plan.n, ignore_eos=plan.ignore_eos)
    with ExitStack() as stack:
        with held():  # otherwise Ctrl-C could leave a file without a header
            trace = stack.enter_context(TraceWriter(plan.file(prompt)))
        session = stack.enter_context(Session(pair))
        labels = plan.labels(prompt)
        tracing = _Tracing(trace, prompt.text, labels=labels, provenance=provenance)
        rounds = session.rounds(tokens, plan.settings(prompt), stop, [tracing], keep_logits=True)
        for _ in rounds:
            pass


class _Tracing(GenerationTrace):
    """Writes a trace; a run that is broken off gets no summary."""

    def end(self, result: Result) -> None:
        if result.complete:
            super().end(result)


def traces_of(plan: Plan) -> Iterator[Trace]:
    """The finished traces, in the order of the prompts."""
    for prompt in plan.prompts:
        trace = plan.finished(prompt)
        if trace is not None:
            yield trace
