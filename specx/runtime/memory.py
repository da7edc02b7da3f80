"""Whether a run fits into memory, known before anything is loaded.

Only the KV cache is counted. llama.cpp writes all of it when it makes a context, while a model's
weights are mapped from the file: pages that the system takes back when it needs them. Every figure
is a lower bound, so what is refused here would not have fitted; the reverse does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from specx.errors import ContextError
from specx.runtime.metadata import Metadata, is_gguf, read_metadata

__all__ = [
    "CacheShape",
    "Planned",
    "available_memory",
    "cache_bytes",
    "cache_shape",
    "check_fits",
]

ELEMENT_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""Bytes of one element: ggml stores quantised ones in blocks of 32 with their scales."""

KNOWN = frozenset(
    "cohere2 command-r exaone falcon gemma gemma2 gemma3 gpt-oss gpt2 gptneox granite internlm2 "
    "llama mistral3 olmo olmo2 phi2 phi3 qwen2 qwen2moe qwen3 qwen3moe seed_oss smollm3 stablelm "
    "starcoder2".split()
)
"""Architectures with one key and one value vector for each token, layer and KV head, and no more.
Layers with a sliding window count in full: their caches are allocated whole, because a shorter one
forgets what a rewind needs."""

UNCOUNTED = ("attention.key_length_mla", "attention.kv_lora_rank", "nextn_predict_layers")
"""Metadata of models that store something else than keys and values (latent attention), or not in
every layer."""

DEFAULT_CONTEXT = 4096
MOST_LAYERS = 512
STEP = 256
"""Contexts come in multiples of this many positions."""


@dataclass(frozen=True)
class CacheShape:
    """What a model keeps of a token: elements of keys and of values, layer by layer."""

    keys: tuple[int, ...]
    values: tuple[int, ...]


@dataclass(frozen=True)
class Planned:
    """A model that is about to be loaded with its cache in this machine's memory."""

    path: Path
    n_ctx: int | None = None
    """None for the smallest that a backend takes by default."""
    type_k: str | None = None
    type_v: str | None = None


def cache_shape(metadata: Metadata) -> CacheShape | None:
    """What the model keeps of a token; None where that cannot be told from its metadata."""
    n_layers = metadata.number("block_count")
    n_embd = metadata.number("embedding_length")
    known = metadata.architecture in KNOWN
    if not (known and n_layers and n_embd) or n_layers > MOST_LAYERS:
        return None
    n_heads = (metadata.numbers("attention.head_count", n_layers) or [0])[0]
    if n_heads == 0 or any(metadata.has(key) for key in UNCOUNTED):
        return None
    kv_heads = metadata.numbers("attention.head_count_kv", n_layers) or [n_heads] * n_layers
    key_length = metadata.number("attention.key_length") or n_embd // n_heads
    value_length = metadata.number("attention.value_length") or n_embd // n_heads
    return CacheShape(
        keys=tuple(key_length * heads for heads in kv_heads),
        values=tuple(value_length * heads for heads in kv_heads),
    )


def cache_bytes(
    shape: CacheShape, n_ctx: int, *, type_k: str | None = None, type_v: str | None = None
) -> int:
    """Bytes that a cache of `n_ctx` positions takes at least; types are llama.cpp's (``f16``).

    A type that is not known counts nothing.
    """
    key_bytes = ELEMENT_BYTES.get(type_k or "f16", 0.0)
    value_bytes = ELEMENT_BYTES.get(type_v or "f16", 0.0)
    return sum(
        int(n_ctx * (keys * key_bytes + values * value_bytes))
        for keys, values in zip(shape.keys, shape.values, strict=True)
    )


def check_fits(models: Iterable[Planned], *, available: int | None = None) -> None:
    """Raise ContextError if the caches of `models` cannot fit into memory together.

    Models that are not GGUF files, or whose cache cannot be told from their metadata, count
    nothing. Leave out a model whose cache goes to a device with memory of its own.

    Raises
    ------
    ContextError
        In one line: what is needed, what there is, and the context that would fit.
    ModelError
        If a GGUF file is damaged.
    """
    caches = [cache for cache in map(planned_cache, models) if cache is not None]
    free = available_memory() if available is None else available
    needed = sum(cache.size(cache.n_ctx) for cache in caches)
    if needed <= free:
        return
    names = " and ".join(f"{cache.name} at {cache.n_ctx:,} positions" for cache in caches)
    raise ContextError(
        f"the KV cache of {names} needs {gigabytes(needed)}, {gigabytes(free)} of memory are "
        f"available; {remedy(caches, free)}"
    )


@dataclass(frozen=True)
class Cache:
    """A planned model's cache: how large it is at a number of positions."""

    plan: Planned
    n_ctx: int
    shape: CacheShape

    @property
    def name(self) -> str:
        """The model's file name."""
        return self.plan.path.name

    def size(self, n_ctx: int) -> int:
        """Bytes at `n_ctx` positions, or at its own where those are fewer."""
        n_ctx = min(n_ctx, self.n_ctx)
        return cache_bytes(self.shape, n_ctx, type_k=self.plan.type_k, type_v=self.plan.type_v)


def planned_cache(model: Planned) -> Cache | None:
    """The cache that `model` will have; None where its size cannot be told."""
    if not is_gguf(model.path):
        return None
    metadata = read_metadata(model.path)
    shape = cache_shape(metadata)
    trained = metadata.number("context_length")
    n_ctx = model.n_ctx or min(DEFAULT_CONTEXT, trained or DEFAULT_CONTEXT)
    return None if shape is None else Cache(model, n_ctx, shape)


def remedy(caches: Sequence[Cache], free: int) -> str:
    """What to do about it."""
    n_ctx = largest_context(caches, free)
    if n_ctx == 0:
        return "free some memory"
    return f"-c {n_ctx} would fit"


def largest_context(caches: Sequence[Cache], free: int) -> int:
    """Positions, in steps of `STEP`, at which all `caches` fit into `free` bytes together."""
    low, high = 0, max(cache.n_ctx for cache in caches) // STEP
    while low < high:
        middle = (low + high + 1) // 2
        if sum(cache.size(middle * STEP) for cache in caches) <= free:
            low = middle
        else:
            high = middle - 1
    return low * STEP


def available_memory() -> int:
    """Bytes that this process can still take without swapping: the system's, or its cgroup's."""
    return min([psutil.virtual_memory().available, *cgroup_rooms()])


def cgroup_rooms(
    membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> list[int]:
    """Bytes left under each memory limit of this process's cgroups and of those above them."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    rooms = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            rooms += [unified_room(folder) for folder in upwards(mount, path)]
        elif "memory" in controllers.split(","):
            rooms += [legacy_room(folder) for folder in upwards(mount / "memory", path)]
    return [room for room in rooms if room is not None]


def upwards(mount: Path, path: str) -> list[Path]:
    """The cgroup `path` under `mount`, and all above it; a container may see only the last."""
    folder = mount / path.lstrip("/")
    return [folder, *(above for above in folder.parents if above.is_relative_to(mount))]


def unified_room(folder: Path) -> int | None:
    """Bytes left under a version 2 limit; None if there is none."""
    limit = read_count(folder / "memory.max")
    usage = read_count(folder / "memory.current")
    statistics = read_statistics(folder / "memory.stat")
    reclaimable = ("inactive_file", "active_file", "slab_reclaimable")
    return room(limit, usage, sum(statistics.get(name, 0) for name in reclaimable))


def legacy_room(folder: Path) -> int | None:
    """Bytes left under a version 1 limit; None if there is none."""
    limit = read_count(folder / "memory.limit_in_bytes")
    usage = read_count(folder / "memory.usage_in_bytes")
    statistics = read_statistics(folder / "memory.stat")
    reclaimable = ("total_inactive_file", "total_active_file")
    return room(limit, usage, sum(statistics.get(name, 0) for name in reclaimable))


def room(limit: int | None, usage: int | None, reclaimable: int) -> int | None:
    """What a limit leaves; cached files give way, so they do not count as used."""
    if limit is None or usage is None:
        return None
    return max(0, limit - max(0, usage - reclaimable))


def read_count(path: Path) -> int | None:
    """The number in a one-line file; None for ``max``, or no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def read_statistics(path: Path) -> dict[str, int]:
    """Lines of a name and a number; empty if there is no such file."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def gigabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1e9:,.2f} GB"
