"""GGUF files that are odd or broken: each is one line, and none ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_gguf
from tiny_gguf import Field, Kind, number, real, strings, text, write

from specx.errors import BackendError, ContextError, ModelError, OptionError
from specx.runtime.backend import LoadOptions, get_backend
from specx.runtime.metadata import read_metadata
from specx_backends.llamacpp_library import Log
from specx_backends.llamacpp_tokenizer import longest_word

TOKENS, KINDS = tiny_gguf.TOKENS, tiny_gguf.KINDS


def load(path: Path, **options: Any) -> Any:
    return get_backend("llamacpp").load(str(path), LoadOptions(**{"n_ctx": 64, **options}))


def test_the_sound_file_that_the_odd_ones_are_made_of_loads(tmp_path: Path) -> None:
    with load(write(tmp_path / "sound.gguf")) as model:
        assert model.forward([1, 5]).shape == (1, len(TOKENS))


ODD: dict[str, tuple[dict[str, Field | None], str]] = {
    "no layers": ({"llama.block_count": number(0)}, "block_count is 0"),
    "too many layers": ({"llama.block_count": number(513)}, "block_count is 513"),
    "epsilon NaN": ({"llama.attention.layer_norm_rms_epsilon": real(np.nan)}, "epsilon is nan"),
    "epsilon < 0": ({"llama.attention.layer_norm_rms_epsilon": real(-1)}, "epsilon is -1.0"),
    "experts unused": ({"llama.expert_count": number(3)}, "expert_used_count is None of 3"),
    "too many used": (
        {"llama.expert_count": number(2), "llama.expert_used_count": number(3)},
        "expert_used_count is 3 of 2",
    ),
    "alignment": ({"general.alignment": number(1)}, "general.alignment is 1"),
    "rope": ({"llama.rope.scaling.type": text("zzz")}, "rope.scaling.type is 'zzz'"),
    "equal tokens": (
        {"tokenizer.ggml.tokens": strings([*TOKENS[:-1], "a"])},
        "tokens 260 and 285 .* are both 'a'",
    ),
    "no byte tokens": (
        {"tokenizer.ggml.tokens": strings([f"t{i}" for i in range(286)])},
        "no token for 256 of 256 bytes",
    ),
    "a byte that is none": (
        {"tokenizer.ggml.token_type": ([*KINDS[:-1], 6], Kind.ARRAY, Kind.INT32)},
        "token 285 is said to be a byte, but named 'z'",
    ),
    "types of another type": (
        {"tokenizer.ggml.token_type": (KINDS, Kind.ARRAY, Kind.INT64)},
        "token_type holds numbers of type 11",
    ),
    "too few types": (
        {"tokenizer.ggml.token_type": (KINDS[:5], Kind.ARRAY, Kind.INT32)},
        "token_type has 5 entries for 286 tokens",
    ),
    "too few scores": (
        {"tokenizer.ggml.scores": ([0.0], Kind.ARRAY, Kind.FLOAT32)},
        "scores has 1 entries",
    ),
    "tokens that are no texts": (
        {"tokenizer.ggml.tokens": ([1, 2], Kind.ARRAY, Kind.INT32)},
        "tokens.* is not a list of strings",
    ),
    "no tokenizer": ({"tokenizer.ggml.model": text("no_vocab")}, "has no tokenizer"),
    "no vocabulary": (
        {"tokenizer.ggml.model": None, "tokenizer.ggml.tokens": None},
        "has no tokenizer",
    ),
    "vision": ({"general.type": text("mmproj")}, "the vision part of a model"),
    "adapter": ({"general.type": text("adapter")}, "an adapter"),
    "shard": ({"split.no": (1, Kind.UINT16)}, "a later shard"),
}


@pytest.mark.parametrize("name", ODD)
def test_a_file_that_llama_cpp_would_die_of_is_one_line(tmp_path: Path, name: str) -> None:
    put, reason = ODD[name]
    with pytest.raises(ModelError, match=reason) as error:
        load(write(tmp_path / "odd.gguf", put=put))
    assert "\n" not in str(error.value)


def test_a_vision_part_is_named_by_its_architecture(tmp_path: Path) -> None:
    fields = {"general.architecture": text("clip")}
    with pytest.raises(ModelError, match="the vision part of a model"):
        load(write(tmp_path / "mmproj.gguf", fields, {}))


def test_a_file_without_weights_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a vocabulary without weights"):
        load(write(tmp_path / "vocab.gguf", tensors={}))


def test_several_empty_tokens_are_no_fault(tmp_path: Path) -> None:
    tokens = strings([*TOKENS[:-2], "", ""])  # llama.cpp gives each a name of its own
    with load(write(tmp_path / "empty.gguf", put={"tokenizer.ggml.tokens": tokens})) as model:
        assert model.n_vocab == len(TOKENS)


@pytest.mark.parametrize("kind", [np.int32, np.float16])
def test_an_odd_file_that_kills_its_trial_is_one_line(tmp_path: Path, kind: type) -> None:
    integers = {**tiny_gguf.llama_tensors(), "blk.0.attn_norm.weight": np.ones(32, kind)}
    with pytest.raises(ModelError, match="llama.cpp gave up: .*unsupported types"):
        load(write(tmp_path / "integers.gguf", tensors=integers))


def test_a_file_that_crashes_its_trial_is_one_line(tmp_path: Path) -> None:
    weights = tiny_gguf.llama_tensors()
    name = "blk.0.attn_q.weight"
    wide = {**weights, name: weights[name].astype(np.float64)}  # ends llama.cpp by SIGSEGV
    with pytest.raises(ModelError, match=r"llama.cpp (crashes on it|gave up)") as error:
        load(write(tmp_path / "wide.gguf", tensors=wide))
    assert "\n" not in str(error.value)


def test_an_odd_file_that_survives_its_trial_loads(tmp_path: Path) -> None:
    integers = {**tiny_gguf.llama_tensors(), "blk.0.attn_norm.weight": np.ones(32, np.float32)}
    path = write(
        tmp_path / "odd.gguf", put={"tokenizer.ggml.model": text("whitespace")}, tensors=integers
    )
    with pytest.raises(ModelError, match="merges"):  # told by llama.cpp in an ordinary way
        load(path)


DIES = """
import ctypes
from specx.runtime.fatal import exit_code_when_dying, last_words
from specx_backends.llamacpp_library import ggml, library
lib = library()
with exit_code_when_dying(2), last_words(lambda reason: print("unsaved text", end="")):
    {how}
"""
ASSERTION = 'ggml(lib, "ggml_abort", None)(b"/somewhere/file.c", 7, b"of no use")'
EXCEPTION = 'ctypes.CDLL("libstdc++.so.6")["_ZSt20__throw_out_of_rangePKc"](b"of no use")'


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (ASSERTION, "file.c:7: of no use"),
        pytest.param(
            EXCEPTION,
            "out_of_range",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="throws by libstdc++"),
        ),
    ],
)
def test_an_end_of_the_library_is_one_line_and_its_code_after_last_words(
    how: str, words: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", DIES.format(how=how)], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (2, "unsaved text")
    assert ended.stderr.startswith("specx: llama.cpp gave up: ")
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(("around", "code"), [("exit_code_when_dying(2)", 2), ("nullcontext()", 0)])
def test_several_threads_that_die_of_one_fault_speak_once(around: str, code: int) -> None:
    script = f"""
import threading
from contextlib import nullcontext
from specx.runtime.fatal import die, exit_code_when_dying
with {around}:
    threads = [threading.Thread(target=die, args=("no use",)) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (code, "specx: no use\n")


def test_a_library_user_hears_the_line_and_keeps_the_signal() -> None:
    code = DIES.format(how=ASSERTION).replace("exit_code_when_dying(2), ", "")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode not in (0, 2)
    assert ended.stdout == "unsaved text"
    assert "specx: llama.cpp gave up: file.c:7: of no use" in ended.stderr


# Positions that were learned


def gpt2(folder: Path) -> Path:
    return write(folder / "gpt2.gguf", tiny_gguf.gpt2(), tiny_gguf.gpt2_tensors())


def test_a_context_beyond_the_learned_positions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContextError, match="64 positions .* context of 256; pass -c 64 or less"):
        load(gpt2(tmp_path), n_ctx=256)


def test_by_default_the_context_ends_with_the_learned_positions(tmp_path: Path) -> None:
    with load(gpt2(tmp_path), n_ctx=None, need_ctx=lambda _: 300) as model:
        assert model.n_ctx == 64
        assert model.forward([5] * 64).shape == (1, 257)


# Texts that recurse


@pytest.mark.parametrize("word", ["a", ".", " ", "é"])
def test_a_long_word_is_tokenized_however_deep_its_expression_recurses(
    tmp_path: Path, word: str
) -> None:
    fields = {**tiny_gguf.gpt2(), "tokenizer.ggml.pre": text("gpt-4o")}
    with load(write(tmp_path / "deep.gguf", fields, tiny_gguf.gpt2_tensors())) as model:
        ids = model.tokenizer.encode(word * 100_000, add_special=False, parse_special=False)
        assert b"".join(map(model.tokenizer.token_bytes, ids)) == word.encode() * 100_000


def test_a_word_beyond_all_stacks_is_one_line(tmp_path: Path) -> None:
    with (
        load(gpt2(tmp_path)) as model,
        pytest.raises(BackendError, match="1,000,001 characters in a row without a blank"),
    ):
        model.tokenizer.encode("a" * 1_000_001, add_special=False, parse_special=False)


def test_the_longest_word_is_of_blanks_or_of_all_else() -> None:
    assert longest_word("ab   cd") == 3
    assert longest_word("ab cdef") == 4


# Metadata and options


def test_names_that_are_no_utf8_and_arrays_in_arrays_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "latin.gguf", put={"general.name": text("cafe")})
    path.write_bytes(path.read_bytes().replace(b"cafe", b"caf\xe9"))
    assert read_metadata(path).values["general.name"] == "caf�"
    with load(path) as model:
        assert model.n_vocab == len(TOKENS)
    nested = ([[1, 2], [3]], Kind.ARRAY, Kind.ARRAY)
    assert "odd.nested" not in read_metadata(nested_file(tmp_path, nested)).values


def nested_file(folder: Path, nested: Field) -> Path:
    """A file whose last key holds arrays in an array, which the library cannot write."""
    path = write(folder / "nested.gguf", put={"zz.key": number(7)})
    key = b"zz.key" + (4).to_bytes(4, "little") + (7).to_bytes(4, "little")
    inner = b"".join(
        (4).to_bytes(4, "little")
        + len(row).to_bytes(8, "little")
        + b"".join(n.to_bytes(4, "little") for n in row)
        for row in nested[0]
    )
    array = (9).to_bytes(4, "little") + len(nested[0]).to_bytes(8, "little") + inner
    whole = path.read_bytes()
    assert key in whole
    path.write_bytes(whole.replace(key, b"zz.key" + (9).to_bytes(4, "little") + array))
    return path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelError, match="pipe.gguf': it is not a regular file"):
        load(tmp_path / "pipe.gguf")


def test_a_key_of_any_length_is_read_in_linear_time() -> None:
    log = Log()
    log.write(2, b"kv   0: " + b"x" * 2_000_000 + b" buffer size\n", None)  # minutes, if quadratic
    log.write(2, b"CPU model buffer size =   12.00 MiB\n", None)
    assert log.buffers == {"CPU model": 12.0}


@pytest.mark.parametrize("threads", [100_000, 99_999_999_999_999_999_999])
def test_more_threads_than_any_machine_has_use_for_are_refused(
    tmp_path: Path, threads: int
) -> None:
    with pytest.raises(OptionError, match=f"threads is {threads}; (at most|it must be)"):
        load(write(tmp_path / "sound.gguf"), threads=threads)


@pytest.mark.parametrize("name", ["smollm2", "qwen05", "gemma"])
def test_padding_is_what_llama_cpp_marks_as_unused(
    name: str, request: pytest.FixtureRequest
) -> None:
    with load(request.getfixturevalue(name)) as model:
        lib, vocab = model._lib, model._weights.vocab
        unused = [
            token
            for token in range(model.n_vocab)
            if lib.llama_vocab_get_attr(vocab, token) & lib.LLAMA_TOKEN_ATTR_UNUSED
        ]
        assert model.tokenizer.padding_ids.tolist() == unused
