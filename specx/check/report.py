"""From what the files of the models say to a verdict on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from specx.check.records import (
    FORMAT,
    CheckRecord,
    DifferingToken,
    LoadedRecord,
    MemoryRecord,
    ModelRecord,
    PairRecord,
    SpecialToken,
    TemplateRecord,
)
from specx.check.template import probe_template
from specx.errors import ContextError, SpecxError
from specx.runtime.inspection import Inspection
from specx.runtime.memory import available_memory, check_fits, gigabytes
from specx.runtime.vocabulary import compare, shown

__all__ = ["Candidate", "check_models", "with_loaded"]

SHOWN = 3
"""How many differing ids are named."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model to check."""

    role: str
    backend: str
    inspect: Callable[[], Inspection]


def check_models(
    candidates: Sequence[Candidate],
    version: str,
    require_memory: Callable[[], None],
    *,
    available: int | None = None,
) -> CheckRecord:
    """Check a verifier and, optionally, a drafter, from their files alone.

    Parameters
    ----------
    require_memory
        Raises a SpecxError if the runtimes, asked themselves, would not fit the caches into memory;
        called only if they exceed main memory, as a GPU may hold them.
    available
        Bytes of memory; by default what this machine has.
    """
    faults: list[str] = []
    found: dict[str, Inspection] = {}
    records = []
    for candidate in candidates:
        try:
            found[candidate.role] = its = candidate.inspect()
        except SpecxError as error:
            faults.append(str(error))
        else:
            records.append(_model_record(candidate, its))
    free = available_memory() if available is None else available
    limits = [text for record in records for text in _limits_of(record, found[record.role])]
    pair = None
    if "verifier" in found and "drafter" in found:
        pair = _pair_record(found["verifier"], found["drafter"])
        if pair.fits:
            limits += _limits_of_pair(pair, records[0], records[1])
        else:
            faults.append(_told(pair, "the drafter has another tokenizer", most=1))
    models = [*found.values()]
    memory = _memory_record(models, free) if models else None
    if memory is not None:
        refusal = _memory_fault(models, free, require_memory)
        faults += [] if refusal is None else [refusal]
        limits += [] if refusal is not None else _memory_limits(memory, models)
    return CheckRecord(
        specx_check=FORMAT,
        version=version,
        verdict=_verdict(faults, limits),
        faults=faults,
        limits=limits,
        models=records,
        pair=pair,
        memory=memory,
        loaded=None,
    )


def with_loaded(
    record: CheckRecord, loaded: Sequence[LoadedRecord], fault: str | None = None
) -> CheckRecord:
    """`record` with what the loaded models showed, or the fault that kept them from loading."""
    faults = [*record.faults, *([] if fault is None else [fault])]
    limits = [*record.limits, *(text for each in loaded for text in _rollback_limits(each))]
    return replace(
        record,
        verdict=_verdict(faults, limits),
        faults=faults,
        limits=limits,
        loaded=None if fault is not None else loaded,
    )


def _verdict(faults: Sequence[str], limits: Sequence[str]) -> Literal["good", "limits", "cannot"]:
    return "cannot" if faults else "limits" if limits else "good"


# One model


def _model_record(candidate: Candidate, found: Inspection) -> ModelRecord:
    tokens = found.tokenizer
    return ModelRecord(
        role=candidate.role,
        backend=candidate.backend,
        file=found.name,
        title=found.title,
        architecture=found.architecture,
        quantisation=found.quantisation,
        n_params=found.n_params,
        n_bytes=found.n_bytes,
        n_ctx=found.n_ctx,
        n_ctx_train=found.n_ctx_train,
        n_vocab=found.n_vocab,
        n_padding=len(tokens.padding_ids),
        tokenizer=found.tokenizer_kind,
        bos=_special(found, tokens.bos_id, tokens.adds_bos),
        eos=_special(found, tokens.eos_id, tokens.adds_eos),
        template=probe_template(tokens) if candidate.role == "verifier" else None,
    )


def _special(found: Inspection, token: int | None, added: bool) -> SpecialToken | None:
    if token is None:
        return None
    return SpecialToken(id=token, text=found.tokenizer.token_text(token), added=added)


def _limits_of(record: ModelRecord, found: Inspection) -> Iterator[str]:
    for remark in found.remarks:
        yield f"the {record.role}: {remark}"
    if record.n_ctx_train is not None and record.n_ctx > record.n_ctx_train:
        yield (
            f"the {record.role} was trained on {record.n_ctx_train:,} positions; text beyond them, "
            f"up to {record.n_ctx:,}, may be poor"
        )
    if record.template is not None:
        yield from _template_limits(record.template)


def _template_limits(template: TemplateRecord) -> Iterator[str]:
    if template.problem is not None:
        yield template.problem
    elif template.system == "refused":
        yield "the chat template refuses a system message; leave it out, or pass --raw"
    elif template.system == "merged":
        yield "the chat template takes no system message; it goes before the user's first message"
    if template.altered:
        yield "the chat template alters the text of the messages; --raw does without it"


# The pair


def _pair_record(verifier: Inspection, drafter: Inspection) -> PairRecord:
    found, sides = compare(verifier, drafter), (verifier.tokenizer, drafter.tokenizer)
    named = found.differing
    if not found.fits:  # of thousands, those that are text in both show it best
        named = [i for i in named if all(tokens.token_bytes(i) for tokens in sides)] or named
    return PairRecord(
        n_shared=len(found.shared),
        n_differing=len(found.differing),
        first_differing=[
            DifferingToken(
                id=token,
                verifier=shown(verifier.tokenizer, token),
                drafter=shown(drafter.tokenizer, token),
            )
            for token in named[:SHOWN]
        ],
        fits=found.fits,
        size_ratio=drafter.n_bytes / verifier.n_bytes,
    )


def _told(pair: PairRecord, consequence: str, *, most: int = SHOWN) -> str:
    """A consequence of differing ids, at `most` so many of them by name."""
    named = "; ".join(
        f"id {token.id} is {token.verifier} in the verifier and {token.drafter} in the drafter"
        for token in pair.first_differing[:most]
    )
    return (
        f"{consequence}: {pair.n_differing:,} of {pair.n_shared:,} shared ids are other tokens "
        f"({named})"
    )


def _limits_of_pair(pair: PairRecord, verifier: ModelRecord, drafter: ModelRecord) -> Iterator[str]:
    if pair.n_differing:
        yield _told(pair, "the drafter never proposes some tokens")
    if drafter.n_ctx < verifier.n_ctx:
        yield (
            f"nothing is drafted beyond position {drafter.n_ctx:,}, where the drafter's context "
            f"ends; the verifier's has {verifier.n_ctx:,}"
        )
    if pair.size_ratio >= 1 and drafter.backend == verifier.backend:
        yield (
            f"the drafter is not smaller than the verifier ({gigabytes(drafter.n_bytes)} against "
            f"{gigabytes(verifier.n_bytes)}), so drafting with it can hardly be faster"
        )
    yield from _limits_of_ends(verifier, drafter)


def _limits_of_ends(verifier: ModelRecord, drafter: ModelRecord) -> Iterator[str]:
    """Special tokens that differ: the text is the verifier's; the drafter is right less often."""
    began = [record.bos is not None and record.bos.added for record in (verifier, drafter)]
    if began[0] != began[1]:
        has, lacks = ("verifier", "drafter") if began[0] else ("drafter", "verifier")
        yield (
            f"the {has} has BOS before its texts and the {lacks} has not (add_bos); fewer drafts "
            "may be accepted"
        )
    ends = [None if record.eos is None else record.eos.id for record in (verifier, drafter)]
    if ends[0] != ends[1]:
        yield (
            f"EOS is {_named(verifier.eos)} in the verifier and {_named(drafter.eos)} in the "
            "drafter; the verifier's counts"
        )


def _named(token: SpecialToken | None) -> str:
    return "not there" if token is None else f"id {token.id} {token.text!r}"


# Memory


def _memory_record(models: Sequence[Inspection], available: int) -> MemoryRecord:
    mapped = {model.path: model.weights for model in models if model.mapped}
    own = sum(model.weights for model in models if not model.mapped)
    return MemoryRecord(
        weights=sum(mapped.values()) + own,
        caches=sum(m.cache.size(m.n_ctx) for m in models if m.cache is not None),
        available=available,
    )


def _memory_fault(
    models: Sequence[Inspection], available: int, require_memory: Callable[[], None]
) -> str | None:
    try:
        check_fits((m.cache for m in models if m.cache is not None), available=available)
    except ContextError:
        try:
            require_memory()
        except SpecxError as error:
            return str(error)
    return None


def _memory_limits(memory: MemoryRecord, models: Sequence[Inspection]) -> list[str]:
    needed = memory.weights + memory.caches
    if needed <= memory.available:
        return []
    mapped = all(model.mapped for model in models)
    effect = "weights will be read from disk again and again" if mapped else "memory may run out"
    return [
        f"weights and caches take {gigabytes(needed)}, {gigabytes(memory.available)} of memory are "
        f"available; unless a GPU holds them, {effect}"
    ]


# Loaded models


def _rollback_limits(loaded: LoadedRecord) -> Iterator[str]:
    if loaded.rollback == "checkpoint":
        yield f"the {loaded.role} rewinds by checkpoints: rounds with a draft copy its state"
    elif loaded.rollback == "none":
        yield f"the {loaded.role} cannot forget tokens, so it decodes plainly, without any drafter"
