"""Runs a study: a trace a prompt in a folder, so that what is done stays done."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specx.bench.profiling import encode_prompt
from specx.chat import ChatOptions
from specx.decoding import Stop
from specx.errors import UsageError
from specx.interrupts import held
from specx.pair import Pair, Settings
from specx.sampling import SamplingParams
from specx.stats import Tally
from specx.suites import Prompt
from specx.trace import Trace, TraceWriter, header_for, read_trace, summary_of

__all__ = ["Plan", "run_study", "traces_of"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a study runs, always under rule token."""

    folder: Path
    prompts: Sequence[Prompt]
    n: int
    """Most tokens a prompt is continued by."""
    gamma: int = 4
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    ignore_eos: bool = False
    raw: bool = False
    """Without the model's chat template."""
    chat: ChatOptions = field(default_factory=ChatOptions)
    """What the template is given beside the prompt."""

    def settings(self, prompt: Prompt) -> Settings:
        """A prompt's own seed, whatever else is in the study."""
        seed = zlib.crc32(f"{self.seed}/{prompt.id}".encode())
        return Settings(sampling=self.sampling, gamma=self.gamma, rule="token", seed=seed)

    def labels(self, prompt: Prompt) -> dict[str, Any]:
        """What tells a trace's place in a study, and whether it belongs to this one."""
        asked = {"template_args": dict(self.chat.arguments)} if self.chat.arguments else {}
        return {
            "id": prompt.id,
            "kind": prompt.kind,
            "n": self.n,
            "ignore_eos": self.ignore_eos,
            **asked,
        }

    def file(self, prompt: Prompt) -> Path:
        """Where the prompt's trace lies."""
        name = re.sub(r"[^A-Za-z0-9_-]", "_", prompt.id)[:80]
        return self.folder / f"{name}-{zlib.crc32(prompt.id.encode()):08x}.jsonl"

    def finished(self, prompt: Prompt) -> Trace | None:
        """The prompt's trace, if it is whole.

        Raises
        ------
        UsageError
            If it was made under other settings.
        """
        path = self.file(prompt)
        if not path.exists():
            return None
        try:
            trace = read_trace(path)
        except UsageError:  # died before its header was whole
            return None
        settings = self.settings(prompt)
        same = (
            trace.header.labels == self.labels(prompt)
            and trace.header.prompt == prompt.text
            and trace.header.sampling == asdict(settings.sampling)
            and (trace.header.gamma, trace.header.seed) == (settings.gamma, settings.seed)
        )
        if not same:
            raise UsageError(f"{path} was made under other settings; choose another folder")
        return trace if trace.summary is not None else None

    def missing(self) -> list[Prompt]:
        """The prompts whose traces are not whole."""
        return [prompt for prompt in self.prompts if self.finished(prompt) is None]


def run_study(
    plan: Plan,
    pair: Pair,
    provenance: Mapping[str, Any],
    *,
    report: Callable[[int], None] = lambda prompts: None,
) -> None:
    """Trace what `plan` lacks.

    Parameters
    ----------
    report
        Called with the number of prompts that are done, those found included.
    """
    missing = plan.missing()
    done = len(plan.prompts) - len(missing)
    for number, prompt in enumerate(missing, done + 1):
        _run(plan, pair, prompt, provenance)
        report(number)


def _run(plan: Plan, pair: Pair, prompt: Prompt, provenance: Mapping[str, Any]) -> None:
    """One prompt from empty caches."""
    for model in pair.models:
        model.truncate(0)
    tokenizer, clock = pair.verifier.tokenizer, pair.verifier.clock
    tokens = encode_prompt(tokenizer, prompt.text, raw=plan.raw, chat=plan.chat)
    settings, tally = plan.settings(prompt), Tally()
    stop = Stop(tokenizer, plan.n, ignore_eos=plan.ignore_eos)
    labels = plan.labels(prompt)
    header = header_for(pair, settings, tokens, prompt.text, labels=labels, provenance=provenance)
    with ExitStack() as stack:
        with held():  # else Ctrl-C may leave a file without a header behind
            trace = stack.enter_context(TraceWriter(plan.file(prompt)))
            trace.begin(header, tokenizer)
        begun = clock()
        pair.prefill(tokens)
        decoding = clock()
        for done in pair.rounds(tokens, settings, stop, keep_logits=True):
            tally.add(done)
            trace.round(done)
        tally.total = clock() - decoding
        trace.end(
            summary_of(
                tally,
                stop.reason,
                prefill_s=decoding - begun,
                trace_s=trace.seconds,
                rest=stop.finish(),
            )
        )


def traces_of(plan: Plan) -> Iterator[Trace]:
    """The finished traces, in the order of the prompts."""
    for prompt in plan.prompts:
        trace = plan.finished(prompt)
        if trace is not None:
            yield trace
