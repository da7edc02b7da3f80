"""Odd GGUF files: a tiny valid one, and malformed variants of a valid one.

Needs the package gguf and nothing of specx.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np
from gguf import GGUFValueType

__all__ = [
    "ARRAY", "BOOL", "F32", "I32", "STRING", "U32", "Keys", "keys_of", "only_keys", "rewrite",
    "split", "tiny_gpt2", "tiny_llama", "tokens_of", "without_tokenizer",
]  # fmt: skip

STRING, BOOL, ARRAY = GGUFValueType.STRING, GGUFValueType.BOOL, GGUFValueType.ARRAY
U16, U32, I32, F32 = (
    GGUFValueType.UINT16, GGUFValueType.UINT32, GGUFValueType.INT32, GGUFValueType.FLOAT32
)  # fmt: skip
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # kinds of tokens
LETTERS = "abcdefghijklmnopqrstuvwxyz"

Keys: TypeAlias = "Mapping[str, tuple[Any, ...]]"
"""(value, type) or (value, ARRAY, type of its elements) by key."""


def tiny_llama(path: Path, keys: Keys | None = None, *, seed: int = 0) -> Path:
    """A Llama of one layer and 286 tokens: every byte, every letter, three control tokens."""
    width, rng = 32, np.random.default_rng(seed)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *LETTERS, "\u2581"]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(LETTERS) + 1)]
    found: dict[str, tuple[Any, ...]] = {
        "general.name": ("tiny", STRING),
        "llama.context_length": (512, U32),
        "llama.embedding_length": (width, U32),
        "llama.block_count": (1, U32),
        "llama.feed_forward_length": (width, U32),
        "llama.attention.head_count": (2, U32),
        "llama.attention.head_count_kv": (2, U32),
        "llama.attention.layer_norm_rms_epsilon": (1e-5, F32),
        "llama.rope.dimension_count": (width // 2, U32),
        "tokenizer.ggml.model": ("llama", STRING),
        "tokenizer.ggml.tokens": (tokens, ARRAY, STRING),
        "tokenizer.ggml.scores": ([-float(i) for i in range(len(tokens))], ARRAY, F32),
        "tokenizer.ggml.token_type": (kinds, ARRAY, I32),
        "tokenizer.ggml.bos_token_id": (1, U32),
        "tokenizer.ggml.eos_token_id": (2, U32),
        "tokenizer.ggml.unknown_token_id": (0, U32),
        **(keys or {}),
    }
    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    tensors = {"token_embd.weight": rng.normal(0, 0.5, (len(tokens), width))}
    tensors["output_norm.weight"] = np.ones(width)
    tensors |= {f"blk.0.{name}.weight": np.ones(width) for name in ("attn_norm", "ffn_norm")}
    tensors |= {f"blk.0.{name}.weight": rng.normal(0, 0.2, (width, width)) for name in square}
    return _write(path, "llama", found, tensors)


def tiny_gpt2(path: Path, *, positions: int = 64, seed: int = 0) -> Path:
    """A GPT-2 of one layer that learnt only so many positions."""
    width, rng = 32, np.random.default_rng(seed)
    tokens = ["<|endoftext|>", *(chr(i) for i in range(33, 127)), "\u0120", "\u010a", "ab"]
    keys: dict[str, tuple[Any, ...]] = {
        "gpt2.context_length": (positions, U32),
        "gpt2.embedding_length": (width, U32),
        "gpt2.block_count": (1, U32),
        "gpt2.feed_forward_length": (4 * width, U32),
        "gpt2.attention.head_count": (2, U32),
        "gpt2.attention.layer_norm_epsilon": (1e-5, F32),
        "tokenizer.ggml.model": ("gpt2", STRING),
        "tokenizer.ggml.pre": ("gpt-2", STRING),
        "tokenizer.ggml.tokens": (tokens, ARRAY, STRING),
        "tokenizer.ggml.token_type": ([CONTROL, *[NORMAL] * (len(tokens) - 1)], ARRAY, I32),
        "tokenizer.ggml.merges": (["a b"], ARRAY, STRING),
        "tokenizer.ggml.bos_token_id": (0, U32),
        "tokenizer.ggml.eos_token_id": (0, U32),
    }
    shapes = {
        "attn_qkv": (3 * width, width),
        "attn_output": (width, width),
        "ffn_up": (4 * width, width),
        "ffn_down": (width, 4 * width),
    }
    tensors = {
        "token_embd.weight": rng.normal(0, 0.5, (len(tokens), width)),
        "position_embd.weight": rng.normal(0, 0.1, (positions, width)),
        "output_norm.weight": np.ones(width),
        "output_norm.bias": np.zeros(width),
    }
    for name in ("attn_norm", "ffn_norm"):
        tensors |= {f"blk.0.{name}.weight": np.ones(width), f"blk.0.{name}.bias": np.zeros(width)}
    for name, shape in shapes.items():
        tensors[f"blk.0.{name}.weight"] = rng.normal(0, 0.2, shape)
        tensors[f"blk.0.{name}.bias"] = np.zeros(shape[0])
    return _write(path, "gpt2", keys, tensors)


def _write(path: Path, arch: str, keys: Keys, tensors: Mapping[str, Any]) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    _add(writer, keys)
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.asarray(tensor, np.float32))
    return _finish(writer, path)


def _add(writer: gguf.GGUFWriter, keys: Keys) -> None:
    for key, (value, kind, *sub) in keys.items():
        writer.add_key_value(key, value, kind, sub_type=sub[0] if sub else None)


def _finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rewrite(
    source: Path,
    path: Path,
    put: Keys | None = None,
    *,
    drop: Collection[str] = (),
    arch: str | None = None,
    tensors: slice | None = None,
) -> Path:
    """Copy `source` with other keys, without some, with a part of its tensors."""
    reader, put = gguf.GGUFReader(source), put or {}
    writer = gguf.GGUFWriter(path, arch or _value(reader, "general.architecture"))
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or key in {*drop, *put}:
            continue
        sub = field.types[-1] if field.types[0] == ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=sub)
    if arch is None and "general.architecture" in drop:
        writer.kv_data[0].pop("general.architecture")  # that every writer begins with
    _add(writer, put)
    for tensor in reader.tensors[tensors or slice(None)]:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    return _finish(writer, path)


def _value(reader: gguf.GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    assert field is not None, key
    return field.contents()


def keys_of(source: Path) -> list[str]:
    """The keys of a file's metadata."""
    fields = gguf.GGUFReader(source).fields
    return [key for key in fields if not key.startswith("GGUF.")]


def tokens_of(source: Path) -> list[str]:
    """The vocabulary."""
    return list(_value(gguf.GGUFReader(source), "tokenizer.ggml.tokens"))


def without_tokenizer(source: Path, path: Path) -> Path:
    """As a head for a speculative method comes: weights and no vocabulary."""
    arch = _value(gguf.GGUFReader(source), "general.architecture")
    size = {f"{arch}.vocab_size": (len(tokens_of(source)), U32)}
    gone = [key for key in keys_of(source) if key.startswith("tokenizer.") or key in size]
    return rewrite(source, path, {"tokenizer.ggml.model": ("no_vocab", STRING), **size}, drop=gone)


def only_keys(source: Path, path: Path, arch: str, kind: str) -> Path:
    """As an image projector or an adapter looks."""
    return rewrite(
        source,
        path,
        {"general.type": (kind, STRING)},
        drop=[key for key in keys_of(source) if key != "general.name"],
        arch=arch,
        tensors=slice(4),
    )


def split(source: Path, folder: Path, parts: int = 3) -> Sequence[Path]:
    """As llama.cpp's tool splits a file: the keys in the first."""
    total = len(gguf.GGUFReader(source).tensors)
    cuts = [total * part // parts for part in range(parts + 1)]
    paths = []
    for part in range(parts):
        place = {
            "split.no": (part, U16),
            "split.count": (parts, U16),
            "split.tensors.count": (total, I32),
        }
        path = folder / f"split-{part + 1:05d}-of-{parts:05d}.gguf"
        gone = keys_of(source) if part else ()
        paths.append(
            rewrite(source, path, place, drop=gone, tensors=slice(cuts[part], cuts[part + 1]))
        )
    return paths
