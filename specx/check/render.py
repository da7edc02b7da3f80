"""A check as lines for people. They hold texts of the files, which the caller escapes."""

from __future__ import annotations

from collections.abc import Iterator

from specx.check.records import (
    CheckRecord,
    LoadedRecord,
    MemoryRecord,
    ModelRecord,
    PairRecord,
    SpecialToken,
    TemplateRecord,
)
from specx.runtime.memory import gigabytes

__all__ = ["report_lines", "verdict_lines"]

SYSTEM = {
    "taken": "takes a system message",
    "merged": "takes no system message",
    "refused": "refuses a system message",
}


def report_lines(record: CheckRecord) -> Iterator[str]:
    """The facts: a section per model, then the pair, the memory, and what was loaded."""
    for model in record.models:
        yield f"{model.role}  {model.file}"
        yield from _section(_model_rows(model))
    if record.pair is not None:
        yield "pair"
        yield from _section(_pair_rows(record.pair))
    if record.memory is not None:
        yield "memory"
        yield from _section(_memory_rows(record.memory))
    if record.loaded is not None:
        yield "loaded"
        yield from _section({each.role: _loaded(each) for each in record.loaded})


def verdict_lines(record: CheckRecord) -> Iterator[str]:
    """The verdict, one line; below it what limits there are, one each."""
    if record.verdict == "cannot":
        yield f"cannot work because {'; and '.join(record.faults)}"
    elif record.verdict == "limits":
        yield "works with these limits:"
        yield from (f"  - {limit}" for limit in record.limits)
    else:
        yield "good"


def _section(rows: dict[str, str]) -> Iterator[str]:
    for name, text in rows.items():
        yield f"  {name:<9} {text}"
    yield ""


def _model_rows(model: ModelRecord) -> dict[str, str]:
    facts = (
        model.title,
        model.architecture,
        _parameters(model.n_params),
        model.quantisation,
        gigabytes(model.n_bytes),
    )
    padding = f", {model.n_padding:,} of them padding" if model.n_padding else ""
    trained = "" if model.n_ctx_train is None else f", trained on {model.n_ctx_train:,}"
    rows = {
        "model": ", ".join(filter(None, facts)),
        "backend": model.backend,
        "context": f"{model.n_ctx:,} positions{trained}",
        "tokens": f"{model.n_vocab:,}{padding} ({model.tokenizer})",
        "ends": f"BOS {_special(model.bos)}; EOS {_special(model.eos)}",
    }
    if model.role == "verifier":
        rows["template"] = _template(model.template)
    return rows


def _parameters(count: int) -> str:
    """A number of parameters for people; empty if there are none."""
    if count >= 1e9:
        return f"{count / 1e9:,.2f} B parameters"
    return f"{count / 1e6:,.1f} M parameters" if count else ""


def _special(token: SpecialToken | None) -> str:
    if token is None:
        return "none"
    return f"{token.id} {token.text!r} ({'added' if token.added else 'not added'})"


def _template(template: TemplateRecord | None) -> str:
    if template is None:
        return "none: it continues texts"
    if template.problem is not None:
        return "cannot be used"
    return f"holds the user's text, {SYSTEM[template.system]}"


def _pair_rows(pair: PairRecord) -> dict[str, str]:
    same = f"{pair.n_differing:,} of them differ" if pair.n_differing else "all the same"
    return {
        "tokens": f"{pair.n_shared:,} shared, {same}",
        "size": f"the drafter is {pair.size_ratio:.2f} of the verifier's size",
    }


def _memory_rows(memory: MemoryRecord) -> dict[str, str]:
    return {
        "weights": gigabytes(memory.weights),
        "caches": f"{gigabytes(memory.caches)} at least",
        "available": gigabytes(memory.available),
    }


def _loaded(loaded: LoadedRecord) -> str:
    layers = {None: "", -1: ", all layers on a GPU", 0: ", no layers on a GPU"}.get(
        loaded.n_gpu_layers, f", {loaded.n_gpu_layers} layers on a GPU"
    )
    return f"rollback {loaded.rollback}, on {', '.join(loaded.devices) or 'the CPU'}{layers}"
