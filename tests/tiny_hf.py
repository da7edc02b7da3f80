"""Tiny random models of many kinds, as transformers saves them, and how they are loaded here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specx.errors import SpecxError
from specx.runtime.backend import LoadOptions, LogitsBackend
from specx_backends.gguf_tokens import BYTES
from specx_backends.hf import backend

WINDOW = 16
SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
RECURRENT = {"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
ENDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
LAYERS = ["sliding_attention", "full_attention"]
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", SHAPE),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**SHAPE, "sliding_window": WINDOW}),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {**SHAPE, "sliding_window": WINDOW, "layer_types": LAYERS},
    ),
    "mamba": ("MambaConfig", "MambaForCausalLM", {**RECURRENT, **ENDS}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"vocab_size": 320, "n_embd": 32, **ENDS}),
    "gptj": ("GPTJConfig", "GPTJForCausalLM", {"vocab_size": 320, "n_embd": 32, **ENDS}),
    "openai-gpt": ("OpenAIGPTConfig", "OpenAIGPTLMHeadModel", {"vocab_size": 320, "n_embd": 32}),
    "bert": ("BertConfig", "BertForMaskedLM", {k: SHAPE[k] for k in list(SHAPE)[:5]}),
    "t5": ("T5Config", "T5ForConditionalGeneration", {"vocab_size": 320, "d_model": 32}),
}
SIZES = {
    "gpt2": {"n_layer": 1, "n_head": 2, "n_positions": 64},
    "gptj": {"n_layer": 1, "n_head": 2, "n_positions": 64, "rotary_dim": 8},
    "openai-gpt": {"n_layer": 1, "n_head": 2},
    "t5": {"d_ff": 32, "num_layers": 1},
}


def make(folder: Path, kind: str) -> Path:
    """A tiny random model with a tokenizer of bytes, as `save_pretrained` writes it."""
    import torch
    import transformers

    config_class, model_class, values = KINDS[kind]
    torch.manual_seed(1)
    config = getattr(transformers, config_class)(**values, **SIZES.get(kind, {}))
    # Spread wide: with the usual start all rows of logits are nearly the same.
    model = getattr(transformers, model_class)(config)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(str(folder))
    byte_tokenizer().save_pretrained(str(folder))
    return folder


def byte_tokenizer() -> Any:
    import tokenizers
    import transformers

    letters = ["<s>", "</s>", *BYTES]
    core = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, [])
    )
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    core.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    wrapper: Any = transformers.PreTrainedTokenizerFast  # whose constructor has no types
    return wrapper(tokenizer_object=core, bos_token="<s>", eos_token="</s>")


def load(path: Path | str, **options: Any) -> LogitsBackend:
    return backend.load(str(path), LoadOptions(**{"device": "cpu", **options}))


def complaint(path: Path | str, **options: Any) -> str:
    """The one line that loading fails with."""
    with pytest.raises(SpecxError) as caught:
        load(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def encode(model: LogitsBackend, text: str) -> list[int]:
    return model.tokenizer.encode(text, add_special=False, parse_special=False)
