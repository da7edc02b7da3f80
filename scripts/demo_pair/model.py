"""A Llama-architecture language model, small enough to train on two processor cores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Sizes of one model; embeddings are tied and every head has its own keys and values."""

    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    context: int = 1024
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-5

    @property
    def head_width(self) -> int:
        """Entries of one head's query."""
        return self.width // self.heads


class Norm(nn.RMSNorm):
    """Root-mean-square normalisation in its input's type: the mixed kind is slow, and warns."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale each row of `x` to unit mean square, then by the learnt weights."""
        return functional.rms_norm(
            x, tuple(self.normalized_shape), self.weight.to(x.dtype), self.eps
        )


class Block(nn.Module):
    """Attention and a gated feed-forward, each added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attn_norm = Norm(shape.width, eps=shape.norm_epsilon)
        self.attn_q = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_k = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_v = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_output = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_norm = Norm(shape.width, eps=shape.norm_epsilon)
        self.ffn_gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.ffn_down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, stream: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map the residual stream (batch, time, width) to the next layer's."""
        stream = stream + self.attend(self.attn_norm(stream), cos, sin)
        y = self.ffn_norm(stream)
        gated = functional.silu(self.ffn_gate(y)) * self.ffn_up(y)
        return stream + self.ffn_down(gated)  # type: ignore[no-any-return]

    def attend(self, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Causal attention over (batch, time, width)."""
        query = rotate(self.split(self.attn_q(y)), cos, sin)
        key = rotate(self.split(self.attn_k(y)), cos, sin)
        value = self.split(self.attn_v(y))
        mixed = causal_attention(query, key, value)
        return self.attn_output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def split(self, y: Tensor) -> Tensor:
        """(batch, time, width) -> (batch, heads, time, head width)."""
        return y.view(*y.shape[:2], self.heads, -1).transpose(1, 2)


class Llama(nn.Module):
    """Token ids (batch, time) -> logits (batch, time, vocabulary)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.width, eps=shape.norm_epsilon)
        cos, sin = rotary_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        initialise(self)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the token after each position, in the autocast type where one is active."""
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        # Left in float32, the residual stream would make every element-wise step twice as slow.
        stream, cos, sin = (
            x if dtype is None else x.to(dtype)
            for x in (
                self.token_embd(ids),
                self.get_buffer("cos")[: ids.shape[1]],
                self.get_buffer("sin")[: ids.shape[1]],
            )
        )
        for block in self.blk:
            stream = block(stream, cos, sin)
        return functional.linear(self.output_norm(stream), self.token_embd.weight)

    @property
    def n_parameters(self) -> int:
        """Trained numbers, the tied embedding counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention written out: at these sizes twice as fast on a processor as the fused kernel."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    future = torch.full(scores.shape[-2:], float("-inf"), dtype=scores.dtype).triu(1)
    return torch.matmul((scores + future).softmax(-1), value)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, pairing entry i with entry i + head width / 2."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rotary_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles, each (context, head width / 2)."""
    exponents = torch.arange(0, shape.head_width, 2) / shape.head_width
    angles = torch.arange(shape.context)[:, None] * shape.rope_base**-exponents
    return angles.cos(), angles.sin()


def initialise(model: Llama) -> None:
    """Small normal weights; zeros where a block writes, so that training starts from identity."""
    for name, parameter in model.named_parameters():
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            nn.init.zeros_(parameter)
        elif parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
