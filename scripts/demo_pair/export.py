"""Write a trained model as GGUF, as llama.cpp and transformers read it."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from demo_pair.corpus import END_OF_TEXT
from demo_pair.model import Llama, Shape

LICENCE = "PSF-2.0"
ROTARY_ENDINGS = ("attn_q.weight", "attn_k.weight")


def write_gguf(path: Path, name: str, model: Llama, tokenizer: Tokenizer) -> None:
    """Write `model` to `path`: matrices in F16, norms in F32, vocabulary and metadata included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    add_metadata(writer, name, model.shape)
    add_tokenizer(writer, tokenizer)
    for tensor_name, tensor in model.state_dict().items():
        writer.add_tensor(tensor_name, as_stored(tensor_name, tensor.numpy(), model.shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_metadata(writer: gguf.GGUFWriter, name: str, shape: Shape) -> None:
    """Name, licence and sizes."""
    writer.add_name(name)
    writer.add_license(LICENCE)
    writer.add_description("Trained on the Python standard library, to demonstrate specx.")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """The vocabulary in id order, its merges, and end-of-text as both ends of a text."""
    bpe = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)
    kinds = {END_OF_TEXT: gguf.TokenType.CONTROL}
    end = bpe["vocab"][END_OF_TEXT]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(token, gguf.TokenType.NORMAL) for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in bpe["merges"]])
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(True)


def as_stored(name: str, values: npt.NDArray[np.float32], shape: Shape) -> npt.NDArray[np.generic]:
    """One tensor in the type and the row order of the file."""
    if values.ndim == 1:
        return values
    if name.endswith(ROTARY_ENDINGS):
        values = interleave_halves(values, shape.heads)
    return values.astype(np.float16)


def interleave_halves(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Reorder each head's rows for llama.cpp, whose rotary pairs are neighbours, not halves."""
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    stored: npt.NDArray[np.float32] = halves.swapaxes(1, 2).reshape(rows.shape)
    return stored
