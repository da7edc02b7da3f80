"""Writes GGUF files of some 70 KB: a sound llama or GPT-2, and any odd one made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np

Kind = gguf.GGUFValueType
Field: TypeAlias = "tuple[Any, Kind] | tuple[Any, Kind, Kind]"
"""A value, its type, and the type of an array's elements."""

WIDTH, HEADS = 32, 2
CONTROL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TOKENS = [*CONTROL, *BYTES, "▁", *"abcdefghijklmnopqrstuvwxyz"]
KINDS = [2, 3, 3, *[6] * 256, *[1] * 27]
POSITIONS = 64
"""That the tiny GPT-2 has learned."""


def text(value: str) -> Field:
    return value, Kind.STRING


def number(value: int) -> Field:
    return value, Kind.UINT32


def real(value: float) -> Field:
    return value, Kind.FLOAT32


def strings(values: Sequence[str]) -> Field:
    return list(values), Kind.ARRAY, Kind.STRING


def llama() -> dict[str, Field]:
    """The metadata of a sound llama with a SentencePiece vocabulary."""
    return {
        "general.architecture": text("llama"),
        "llama.context_length": number(512),
        "llama.embedding_length": number(WIDTH),
        "llama.block_count": number(1),
        "llama.feed_forward_length": number(WIDTH),
        "llama.attention.head_count": number(HEADS),
        "llama.attention.head_count_kv": number(HEADS),
        "llama.attention.layer_norm_rms_epsilon": real(1e-5),
        "llama.rope.dimension_count": number(WIDTH // HEADS),
        "tokenizer.ggml.model": text("llama"),
        "tokenizer.ggml.tokens": strings(TOKENS),
        "tokenizer.ggml.scores": ([-float(i) for i in range(286)], Kind.ARRAY, Kind.FLOAT32),
        "tokenizer.ggml.token_type": (KINDS, Kind.ARRAY, Kind.INT32),
        "tokenizer.ggml.bos_token_id": number(1),
        "tokenizer.ggml.eos_token_id": number(2),
    }


def llama_tensors() -> dict[str, np.ndarray[Any, Any]]:
    """Its weights, the output layer tied to the embedding."""
    draw = np.random.default_rng(0)
    square = [f"attn_{part}" for part in ("q", "k", "v", "output")]
    square += [f"ffn_{part}" for part in ("gate", "up", "down")]
    return {
        "token_embd.weight": draw.normal(size=(len(TOKENS), WIDTH)).astype(np.float32),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "blk.0.attn_norm.weight": np.ones(WIDTH, np.float32),
        "blk.0.ffn_norm.weight": np.ones(WIDTH, np.float32),
        **{
            f"blk.0.{name}.weight": draw.normal(size=(WIDTH, WIDTH)).astype(np.float32)
            for name in square
        },
    }


def gpt2() -> dict[str, Field]:
    """The metadata of a GPT-2, whose positions are learned."""
    letters = [chr(code) for code in [*range(33, 127), *range(161, 173), *range(174, 256)]]
    letters += [chr(256 + n) for n in range(256 - len(letters))]
    tokens = [*letters, "<|endoftext|>"]
    return {
        "general.architecture": text("gpt2"),
        "gpt2.context_length": number(POSITIONS),
        "gpt2.embedding_length": number(WIDTH),
        "gpt2.block_count": number(1),
        "gpt2.feed_forward_length": number(4 * WIDTH),
        "gpt2.attention.head_count": number(HEADS),
        "gpt2.attention.layer_norm_epsilon": real(1e-5),
        "tokenizer.ggml.model": text("gpt2"),
        "tokenizer.ggml.pre": text("gpt-2"),
        "tokenizer.ggml.tokens": strings(tokens),
        "tokenizer.ggml.token_type": ([*[1] * 256, 3], Kind.ARRAY, Kind.INT32),
        "tokenizer.ggml.merges": strings(["a b"]),
        "tokenizer.ggml.bos_token_id": number(256),
        "tokenizer.ggml.eos_token_id": number(256),
    }


def gpt2_tensors() -> dict[str, np.ndarray[Any, Any]]:
    """Its weights."""
    draw = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (257, WIDTH),
        "position_embd.weight": (POSITIONS, WIDTH),
        "blk.0.attn_qkv.weight": (3 * WIDTH, WIDTH),
        "blk.0.attn_qkv.bias": (3 * WIDTH,),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.attn_output.bias": (WIDTH,),
        "blk.0.ffn_up.weight": (4 * WIDTH, WIDTH),
        "blk.0.ffn_up.bias": (4 * WIDTH,),
        "blk.0.ffn_down.weight": (WIDTH, 4 * WIDTH),
        "blk.0.ffn_down.bias": (WIDTH,),
    }
    for norm in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        shapes[f"{norm}.weight"] = shapes[f"{norm}.bias"] = (WIDTH,)
    return {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write(
    path: Path,
    fields: Mapping[str, Field] | None = None,
    tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
    *,
    put: Mapping[str, Field | None] | None = None,
) -> Path:
    """Write a file; `put` replaces fields, and drops those that are None."""
    own = {**(llama() if fields is None else fields), **(put or {})}
    weights = llama_tensors() if tensors is None else tensors
    architecture = own.pop("general.architecture")
    assert architecture is not None
    writer = gguf.GGUFWriter(path, architecture[0])
    for key, field in own.items():
        if field is not None:
            value, kind, *element = field
            writer.add_key_value(key, value, kind, sub_type=element[0] if element else None)
    for name, data in weights.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
