"""Runs a study: a trace a prompt in a folder, so that what is done stays done."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specx.bench.profiling import encode_prompt
from specx.bench.suites import Prompt
from specx.codec import shortened
from specx.core.sampling import SamplingParams
from specx.errors import UsageError
from specx.interrupts import held
from specx.records.trace import NoGeneration, Trace, TraceWriter, header_for, read_trace, summary_of
from specx.session.chat import ChatOptions
from specx.session.decoding import Round, Stop
from specx.session.generation import Generation, Observer
from specx.session.pair import Pair
from specx.session.result import Result
from specx.session.session import Session
from specx.session.settings import Settings

__all__ = ["Plan", "run_study", "traces_of"]

IDENTITY = (
    "sha256", "bytes", "quantisation", "architecture", "n_params", "n_vocab", "dtype",
    "cache_type_k", "cache_type_v",
)  # fmt: skip
"""What a model is and computes in, of `LogitsBackend.describe`; the rest is how fast."""


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
        """The prompt's trace, if it is whole; raises as `found`."""
        trace = self.found(prompt)
        return trace if trace is not None and trace.summary is not None else None

    def found(self, prompt: Prompt) -> Trace | None:
        """The prompt's trace, if its run got as far as a header.

        Raises
        ------
        UsageError
            If it was made under other settings, or is a file that this specx cannot read: it may
            be another's, and is left as it is.
        """
        path = self.file(prompt)
        if not path.exists():
            return None
        try:
            trace = read_trace(path)
        except NoGeneration:
            return None
        settings = self.settings(prompt)
        same = (
            trace.header.labels == self.labels(prompt)
            and trace.header.prompt == prompt.text
            and trace.header.sampling == settings.sampling
            and (trace.header.gamma, trace.header.seed) == (settings.gamma, settings.seed)
        )
        if not same:
            raise UsageError(f"{path} was made under other settings; choose another folder")
        return trace

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

    Raises
    ------
    UsageError
        If the folder holds a trace of other models, or of the same prompt read as other tokens.
    """
    _require_same(plan, pair, provenance)
    missing = plan.missing()
    done = len(plan.prompts) - len(missing)
    for number, prompt in enumerate(missing, done + 1):
        _run(plan, pair, prompt, provenance)
        report(number)


def _require_same(plan: Plan, pair: Pair, provenance: Mapping[str, Any]) -> None:
    """Refuse to go on with what other models began."""
    for prompt in plan.prompts:
        trace = plan.found(prompt)
        if trace is None:
            continue
        path = trace.path
        for role, model in provenance["models"].items():
            if differing := _differing(trace.header.provenance, role, model):
                raise UsageError(
                    f"{path} was made with another {role} ({differing}); choose another folder"
                )
        tokens = encode_prompt(pair.verifier.tokenizer, prompt.text, raw=plan.raw)
        if trace.header.prompt_ids != tokens:
            raise UsageError(
                f"{path} has its prompt in other tokens, as with another chat template or --raw; "
                "choose another folder"
            )


def _differing(before: Mapping[str, Any], role: str, now: Mapping[str, Any]) -> str:
    """The first fact by which a model is another; empty where none is known to be."""
    models = before.get("models")
    known = models.get(role) if isinstance(models, Mapping) else None
    if not isinstance(known, Mapping):
        return "its trace does not say which"
    # A file that was renamed is the same model; without its hash the name must do.
    facts = IDENTITY if known.get("sha256") and now.get("sha256") else ("file", *IDENTITY)
    for name in facts:
        if name in known and name in now and known[name] != now[name]:
            return f"{name} {shortened(known[name])}, now {shortened(now[name])}"
    return ""


def _run(plan: Plan, pair: Pair, prompt: Prompt, provenance: Mapping[str, Any]) -> None:
    """One prompt from empty caches."""
    tokenizer = pair.verifier.tokenizer
    tokens = encode_prompt(tokenizer, prompt.text, raw=plan.raw, chat=plan.chat)
    stop = Stop(tokenizer, plan.n, ignore_eos=plan.ignore_eos)
    with ExitStack() as stack:
        with held():  # else Ctrl-C may leave a file without a header behind
            trace = stack.enter_context(TraceWriter(plan.file(prompt)))
        session = stack.enter_context(Session(pair))
        tracing = _Tracing(trace, prompt.text, plan.labels(prompt), provenance)
        rounds = session.rounds(tokens, plan.settings(prompt), stop, [tracing], keep_logits=True)
        for _ in rounds:
            pass


@dataclass
class _Tracing(Observer):
    """Writes the trace of a whole run; one that is broken off keeps no summary."""

    trace: TraceWriter
    prompt: str
    labels: Mapping[str, Any]
    provenance: Mapping[str, Any]

    def begin(self, generation: Generation) -> None:
        header = header_for(generation, self.prompt, labels=self.labels, provenance=self.provenance)
        with held():
            self.trace.begin(header, generation.pair.verifier.tokenizer)

    def round(self, done: Round) -> None:
        self.trace.round(done)

    def end(self, result: Result) -> None:
        if result.stop_reason not in ("interrupted", "failed"):
            self.trace.end(summary_of(result, trace_s=self.trace.seconds))


def traces_of(plan: Plan) -> Iterator[Trace]:
    """The finished traces, in the order of the prompts."""
    for prompt in plan.prompts:
        trace = plan.finished(prompt)
        if trace is not None:
            yield trace
