"""What is llama.cpp's own; what every backend must do is in test_contract.py."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from specx.errors import BackendError, ContextError, ModelError, OptionError
from specx.runtime.backend import BackendFactory, LoadOptions, Tokenizer
from specx_backends import llamacpp_library, llamacpp_loading
from specx_backends.llamacpp import LlamaCppModel, backend
from specx_backends.llamacpp_tokenizer import LlamaCppTokenizer

PROSE = "The sun warms the sea, and the water rises as vapour. Cold air turns it into clouds."
BYTES = [chr(c) for c in range(33, 127)]
SPECIALS = ["<end>", "<turn>"]
N_PADDING = 3


# Tiny models with random weights, for what no model at hand has: a recurrent state, padding ids.


def tiny_model(path: Path, architecture: str, *, bos: bool = True) -> Path:
    """Write a GGUF of `architecture` (mamba or llama) with some 90 tokens and two blocks."""
    writer = gguf.GGUFWriter(path, architecture)
    tokens = [*BYTES, *SPECIALS, *(f"[PAD{i}]" for i in range(N_PADDING))]
    kinds = [gguf.TokenType.NORMAL] * len(BYTES) + [gguf.TokenType.CONTROL] * len(SPECIALS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([*kinds, *[gguf.TokenType.UNUSED] * N_PADDING])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(tokens.index("<end>"))
    if bos:
        writer.add_bos_token_id(tokens.index("<end>"))
    writer.add_context_length(256)
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    add_blocks = {"mamba": mamba_blocks, "llama": llama_blocks}[architecture]
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        values = random.standard_normal(shape) / np.sqrt(shape[-1])
        if name.endswith("ssm_a"):
            values = -np.exp(values)  # a state that decays
        writer.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", len(tokens), 32)
    add("output_norm.weight", 32)
    add_blocks(writer, add)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def mamba_blocks(writer: gguf.GGUFWriter, add: Callable[..., None]) -> None:
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(64)
    writer.add_ssm_state_size(16)
    writer.add_ssm_time_step_rank(2)
    for i in range(2):
        add(f"blk.{i}.attn_norm.weight", 32)
        add(f"blk.{i}.ssm_in.weight", 128, 32)
        add(f"blk.{i}.ssm_conv1d.weight", 64, 4)
        add(f"blk.{i}.ssm_conv1d.bias", 64)
        add(f"blk.{i}.ssm_x.weight", 34, 64)
        add(f"blk.{i}.ssm_dt.weight", 64, 2)
        add(f"blk.{i}.ssm_dt.bias", 64)
        add(f"blk.{i}.ssm_a", 64, 16)
        add(f"blk.{i}.ssm_d", 64)
        add(f"blk.{i}.ssm_out.weight", 32, 64)


def llama_blocks(writer: gguf.GGUFWriter, add: Callable[..., None]) -> None:
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(16)
    for i in range(2):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{i}.{name}.weight", 32)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{i}.{name}.weight", 32, 32)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{i}.{name}.weight", 64, 32)
        add(f"blk.{i}.ffn_down.weight", 32, 64)


def load(path: Path, **options: Any) -> LlamaCppModel:
    return backend.load(str(path), LoadOptions(**{"n_gpu_layers": 0, **options}))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "llama")


@pytest.fixture(scope="session")
def tiny_mamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("gguf") / "mamba.gguf", "mamba")


@pytest.fixture(scope="module")
def loaded(smollm2: Path) -> Iterator[LlamaCppModel]:
    with load(smollm2, n_ctx=300) as model:
        yield model


@pytest.fixture
def model(loaded: LlamaCppModel) -> LlamaCppModel:
    loaded.truncate(0)
    return loaded


@pytest.fixture
def text(loaded: LlamaCppModel) -> list[int]:
    return loaded.tokenizer.encode(PROSE * 8, add_special=False, parse_special=False)


# Feeding


def test_more_rows_than_one_call_may_ask_for(model: LlamaCppModel, text: list[int]) -> None:
    rows = model.forward(text[:150], 150)
    model.truncate(0)
    parts = [model.forward(text[i : i + 64], min(64, 150 - i)) for i in range(0, 128, 64)]
    parts.append(model.forward(text[128:150], 22))
    np.testing.assert_array_equal(rows, np.concatenate(parts))


def test_a_failed_call_leaves_the_cache_as_it_was(
    model: LlamaCppModel, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = [model.forward(text[:10]), model.forward(text[10:14], 4)][1]
    model.truncate(10)
    real, calls = model._lib.llama_decode, []

    def decode(context: Any, batch: Any) -> int:
        calls.append(1)
        return -3 if len(calls) == 2 else real(context, batch)

    monkeypatch.setattr(model._lib, "llama_decode", decode)
    with pytest.raises(BackendError, match="-3"):
        model.forward(text[20:120], 100)  # fails in the second of two calls
    assert len(calls) == 2
    assert model.n_past == 10
    np.testing.assert_array_equal(model.forward(text[10:14], 4), want)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [(1, ContextError, "no room"), (2, BackendError, "told to stop"), (-1, BackendError, "-1")],
)
def test_a_failure_is_told_in_words(
    model: LlamaCppModel,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    kind: type[Exception],
    words: str,
) -> None:
    monkeypatch.setattr(model._lib, "llama_decode", lambda context, batch: code)
    with pytest.raises(kind, match=words):
        model.forward([5, 6])
    assert model.n_past == 0


@pytest.mark.parametrize(("removes", "answer"), [(True, False), (False, True)])
def test_a_refused_rollback_is_an_error(
    model: LlamaCppModel, monkeypatch: pytest.MonkeyPatch, removes: bool, answer: bool
) -> None:
    """Both are asked: what llama.cpp answers, and where its cache ends."""
    real = model._lib.llama_memory_seq_rm
    model.forward([5, 6, 7])
    monkeypatch.setattr(
        model._lib, "llama_memory_seq_rm", lambda *args: (removes and real(*args), answer)[1]
    )
    with pytest.raises(BackendError, match="could not forget"):
        model.truncate(1)


@pytest.mark.parametrize("tokens", [[5, -1], [5, 49152], [2**40], [1.5]])
def test_no_token_outside_the_vocabulary_is_fed(model: LlamaCppModel, tokens: list[Any]) -> None:
    with pytest.raises(BackendError, match="outside"):
        model.forward(tokens)
    assert model.n_past == 0


def test_a_closed_model_is_refused_not_crashed_into(tiny: Path) -> None:
    model = load(tiny)
    tokenizer = model.tokenizer
    model.close()
    model.close()
    for use in (
        lambda: model.forward([1]),
        lambda: model.truncate(0),
        model.checkpoint,
        model.describe,
        lambda: tokenizer.token_text(1),
        lambda: tokenizer.encode("a", add_special=False, parse_special=False),
    ):
        with pytest.raises(BackendError, match="closed"):
            use()


def test_a_dropped_model_frees_its_memory(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lib = llamacpp_library.library()
    freed: list[str] = []

    def noted(name: str) -> Callable[[Any], None]:
        real = getattr(lib, name)

        def free(pointer: Any) -> None:
            freed.append(name)
            real(pointer)

        return free

    for name in ("llama_free", "llama_model_free"):
        monkeypatch.setattr(lib, name, noted(name))
    load(tiny)
    gc.collect()
    assert freed == ["llama_free", "llama_model_free"]  # the other order is a crash


# Rollback where llama.cpp cannot forget


def test_a_recurrent_model_is_found_to_need_checkpoints(tiny: Path, tiny_mamba: Path) -> None:
    with load(tiny) as attention, load(tiny_mamba) as recurrent:
        assert (attention.rollback, recurrent.rollback) == ("native", "checkpoint")


def test_checkpoints_bring_back_every_position_since(tiny_mamba: Path) -> None:
    tokens = list(range(10, 30))
    with load(tiny_mamba) as fresh, load(tiny_mamba) as model:
        want = np.concatenate([fresh.forward([token]) for token in tokens])
        for token in tokens[:6]:
            model.forward([token])
        model.checkpoint()
        model.forward([40, 41, 42])  # to be forgotten
        model.truncate(6)
        np.testing.assert_array_equal(model.forward([tokens[6]])[0], want[6])
        model.forward([tokens[7]])
        model.forward([40])
        model.truncate(8)  # two past the checkpoint: they are fed again
        assert model.n_past == 8
        np.testing.assert_allclose(model.forward([tokens[8]])[0], want[8], atol=1e-5)
        with pytest.raises(BackendError, match="before the checkpoint at 6"):
            model.truncate(5)
        assert model.n_past == 9
        model.truncate(0)
        np.testing.assert_array_equal(model.forward([tokens[0]])[0], want[0])


@pytest.mark.parametrize("name", ["tiny_mamba", "gemma"])
def test_a_state_holds_all_layers_where_some_are_recurrent_or_have_windows(
    name: str, request: pytest.FixtureRequest
) -> None:
    """llama.cpp can also copy those layers alone, which is what a checkpoint needs."""
    with load(request.getfixturevalue(name)) as model:
        ids = np.random.default_rng(1).integers(5, 90, 20).tolist()
        model.forward(ids[:12], 0)
        state = model.export_state()
        expected = model.forward(ids[12:16], 4)
        model.truncate(0)
        model.forward(ids[16:], 0)
        model.import_state(state)
        model.forward(ids[:3], 0)
        model.truncate(12)
        np.testing.assert_array_equal(model.forward(ids[12:16], 4), expected)


def test_a_failed_call_on_a_recurrent_model_is_undone(
    tiny_mamba: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(tiny_mamba) as fresh, load(tiny_mamba) as model:
        want = [fresh.forward([token]) for token in (5, 6, 7)][-1]
        model.forward([5])
        model.forward([6])
        model.checkpoint()
        monkeypatch.setattr(model, "_copy_logits", lambda *_: 1 / 0)  # after the tokens were fed
        with pytest.raises(ZeroDivisionError):
            model.forward([40, 41])
        monkeypatch.undo()
        assert model.n_past == 2
        np.testing.assert_array_equal(model.forward([7]), want)


# Files that cannot be loaded


def cut_in_half(path: Path, source: Path) -> Path:
    data = source.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


def renamed_architecture(path: Path, source: Path) -> Path:
    path.write_bytes(source.read_bytes().replace(b"llama", b"lamma"))
    return path


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        ("missing.gguf", lambda path, source: path, "no such file"),
        ("folder.gguf", lambda path, source: path.mkdir(), "name the .gguf file in it"),
        ("text.gguf", lambda path, source: path.write_text("hello"), "not a GGUF file"),
        ("empty.gguf", lambda path, source: path.touch(), "not a GGUF file"),
        (
            "half.gguf",
            cut_in_half,
            "is cut short: it has .* bytes and needs over .*; download it again",
        ),
        ("new.gguf", renamed_architecture, "unknown model architecture.*lamma.*pip install -U"),
    ],
)
def test_a_bad_file_is_told_in_one_line(
    tmp_path: Path,
    tiny: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
    make: Callable[[Path, Path], object],
    words: str,
) -> None:
    path = tmp_path / name
    make(path, tiny)
    with pytest.raises(ModelError, match=words) as caught:
        load(path)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_real_model_cut_in_half(tmp_path: Path, smollm2: Path) -> None:
    with pytest.raises(ModelError, match=r"half.gguf is cut short: .* download"):
        load(cut_in_half(tmp_path / "half.gguf", smollm2))


# Options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cache_type_k": "q9"}, "cache_type_k 'q9'.*f16.*q8_0.*bf16"),
        ({"cache_type_v": "i8"}, "cache_type_v 'i8'"),
        ({"threads": 0}, "threads is 0"),
        ({"n_batch": 0}, "n_batch is 0"),
        ({"n_ctx": 0}, "n_ctx is 0"),
        ({"n_gpu_layers": -2}, "n_gpu_layers is -2"),
        ({"dtype": "float16"}, "cannot honour dtype"),
        ({"device": "cpu"}, "cannot honour device"),
    ],
)
def test_an_option_that_cannot_be_honoured(tiny: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        load(tiny, **options)


@pytest.mark.parametrize("asked", [-1, 20])
def test_offloading_without_a_gpu_is_refused(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, asked: int
) -> None:
    cpu_and_accelerator = [{"type": "cpu"}, {"type": "accel"}]
    monkeypatch.setattr(llamacpp_loading, "devices", lambda lib: cpu_and_accelerator)
    with pytest.raises(OptionError, match=rf"n_gpu_layers is {asked}.*CMAKE_ARGS"):
        load(tiny, n_gpu_layers=asked)


@pytest.mark.parametrize(
    ("kind", "asked", "layers"),
    [("gpu", None, -1), ("igpu", 3, 3), ("gpu", 0, 0), ("cpu", None, 0)],
)
def test_all_layers_go_to_a_gpu_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, kind: str, asked: int | None, layers: int
) -> None:
    monkeypatch.setattr(llamacpp_loading, "devices", lambda lib: [{"type": kind}])
    assert llamacpp_loading.gpu_layers(None, asked) == layers


@pytest.mark.parametrize("name", ["f32", "bf16", "q8_0", "q4_1", "iq4_nl"])
def test_cache_types_reach_llama_cpp(smollm2: Path, name: str) -> None:
    """Told by the cache's size: the option is not only accepted."""
    bits = {"f32": 32, "bf16": 16, "q8_0": 8.5, "q4_1": 5, "iq4_nl": 4.5}[name]
    with load(smollm2, n_ctx=256, cache_type_k=name, cache_type_v=name) as model:
        assert model.forward([5, 6]).shape == (1, model.n_vocab)
        buffers = model.describe()["buffers_mib"]
    assert isinstance(buffers, dict)
    assert buffers["CPU KV"] == pytest.approx(90 * 256 / 4096 * bits / 16, abs=0.02)


def test_a_cache_type_that_a_model_cannot_have(tiny: Path) -> None:
    with pytest.raises(OptionError, match=r"tiny.gguf: K cache type q8_0 .*another cache type"):
        load(tiny, cache_type_k="q8_0")  # heads of 16 in blocks of 32


def test_a_context_that_cannot_be_made(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lib = llamacpp_library.library()
    monkeypatch.setattr(lib, "llama_init_from_model", lambda *_: None)
    with pytest.raises(ContextError, match="no context of 256 positions.*smaller n_ctx"):
        load(tiny)


@pytest.mark.parametrize(("needed", "n_ctx"), [(10, 4096), (5000, 5000), (9000, 8192)])
def test_context_by_default(smollm2: Path, needed: int, n_ctx: int) -> None:
    seen: list[Tokenizer] = []

    def need(tokenizer: Tokenizer) -> int:
        seen.append(tokenizer)
        return needed

    with load(smollm2, need_ctx=need) as model:
        assert model.n_ctx == n_ctx
        assert seen == [model.tokenizer]


def test_context_as_asked_and_no_longer(tiny: Path) -> None:
    """llama.cpp allocates 256 positions for these 40."""
    with load(tiny, n_ctx=40) as model:
        assert model.n_ctx == 40
        model.forward([5] * 40)
        with pytest.raises(ContextError, match="context of 40"):
            model.forward([5])
        assert model.n_past == 40


def test_beyond_the_trained_length_warns_and_within_it_does_not(tiny: Path) -> None:
    with pytest.warns(UserWarning, match=r"n_ctx 400 exceeds the 256 positions .*tiny.gguf"):
        load(tiny, n_ctx=400).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tiny, n_ctx=256).close()


def test_threads_as_asked(tiny: Path) -> None:
    with load(tiny, threads=1) as model:
        lib, context = model._lib, model._context.pointer
        assert (lib.llama_n_threads(context), lib.llama_n_threads_batch(context)) == (1, 1)


def test_progress_is_told_and_can_stop_the_load(tiny: Path) -> None:
    shares: list[float] = []
    load(tiny, progress=shares.append).close()
    assert shares == sorted(shares)
    assert shares[-1] == 1

    calls: list[float] = []

    def interrupt(share: float) -> None:
        calls.append(share)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(tiny, progress=interrupt)
    assert len(calls) == 1


# The log


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("verbose", [False, True])
def test_the_log_is_silent_unless_asked_for(tiny: Path, verbose: bool) -> None:
    """A process of its own: some messages come with the import, some at its end."""
    done = run_python(
        f"""
        import gc
        from specx.runtime.backend import LoadOptions
        from specx_backends.llamacpp import backend
        model = backend.load({str(tiny)!r}, LoadOptions(n_gpu_layers=0, verbose={verbose}))
        gc.collect()
        model.forward([5, 6, 7], 2)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert ("n_ctx_seq" in done.stderr) if verbose else (done.stderr == "")


def test_the_module_does_not_import_llama_cpp() -> None:
    done = run_python(
        """
        import sys, specx_backends.llamacpp
        assert not [name for name in sys.modules if name.startswith("llama_cpp")]
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_missing_library_gives_the_install_line() -> None:
    done = run_python(
        """
        import sys
        from specx.runtime.backend import LoadOptions
        from specx.errors import BackendError
        from specx_backends.llamacpp import backend
        sys.modules["llama_cpp"] = None
        for call in (backend.about, lambda: backend.load("m.gguf", LoadOptions())):
            try:
                call()
            except BackendError as error:
                print(error)
        """
    )
    said = done.stdout.splitlines()
    assert len(said) == 2, done.stderr
    assert all(line == "llama_cpp is not installed; pip install llama-cpp-python" for line in said)


# Tokenizer


def test_padding_ids_are_those_without_a_token(tiny: Path) -> None:
    with load(tiny) as model:
        tokenizer = model.tokenizer
        n_tokens = len(BYTES) + len(SPECIALS)
        assert tokenizer.padding_ids.dtype == np.intp
        assert tokenizer.padding_ids.tolist() == list(range(n_tokens, n_tokens + N_PADDING))
        assert tokenizer.token_bytes(n_tokens) == b""
        assert tokenizer.token_text(n_tokens) == ""
        assert model.n_vocab == n_tokens + N_PADDING


def test_a_vocabulary_without_bos_has_none(tmp_path: Path, tiny: Path) -> None:
    """llama.cpp would answer 11 there, GPT-2's."""
    with load(tiny_model(tmp_path / "nobos.gguf", "llama", bos=False)) as model:
        assert model.tokenizer.bos_id is None
        assert model.tokenizer.eos_id == len(BYTES)
    with load(tiny) as model:
        assert model.tokenizer.bos_id == len(BYTES)


def test_special_tokens(loaded: LlamaCppModel) -> None:
    tokenizer = loaded.tokenizer
    end = tokenizer.encode("<|im_end|>", add_special=False, parse_special=True)
    assert end == [tokenizer.eos_id]
    assert tokenizer.eos_id in tokenizer.eog_ids
    assert tokenizer.token_bytes(end[0]) == b""
    assert tokenizer.token_text(end[0]) == "<|im_end|>"
    assert len(tokenizer.encode("<|im_end|>", add_special=False, parse_special=False)) > 1
    assert "<|im_start|>" in (tokenizer.chat_template or "")


@pytest.mark.parametrize("text", ["", "a\0b", "\0", "e\u0301\u0323", "x" * 50_000, "\udcff"])
def test_encoded_text_comes_back(loaded: LlamaCppModel, text: str) -> None:
    tokenizer = loaded.tokenizer
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    back = b"".join(map(tokenizer.token_bytes, ids))
    want = text.encode("utf-8", "surrogateescape")
    # A byte that is no UTF-8 becomes a replacement character inside llama.cpp.
    assert back.replace("\ufffd".encode(), b"\xff") == want


def test_what_is_no_character_is_refused(loaded: LlamaCppModel) -> None:
    with pytest.raises(BackendError, match="ud800"):
        loaded.tokenizer.encode("a\ud800", add_special=False, parse_special=False)


@pytest.mark.parametrize("token", [-1, 49152])
def test_a_token_outside_the_vocabulary_has_no_text(loaded: LlamaCppModel, token: int) -> None:
    for ask in (loaded.tokenizer.token_bytes, loaded.tokenizer.token_text):
        with pytest.raises(BackendError, match=f"token {token} "):
            ask(token)


def test_a_piece_longer_than_the_buffer(loaded: LlamaCppModel) -> None:
    tokenizer = LlamaCppTokenizer(loaded._lib, loaded._weights)
    long = max(range(loaded.n_vocab), key=lambda i: len(loaded.tokenizer.token_bytes(i)))
    tokenizer._buffer = ctypes.create_string_buffer(1)
    assert tokenizer.token_bytes(long) == loaded.tokenizer.token_bytes(long)


# What it says of itself


def test_about_and_describe_are_json(loaded: LlamaCppModel, smollm2: Path) -> None:
    about = json.loads(json.dumps(backend.about()))
    assert about["devices"][0].keys() == {
        "name",
        "description",
        "type",
        "memory_free",
        "memory_total",
    }
    assert about["rpc"] in (True, False)
    told = json.loads(json.dumps(loaded.describe()))
    assert (told["file"], told["bytes"]) == (str(smollm2), smollm2.stat().st_size)
    assert (told["quantisation"], told["n_params"]) == ("Q4_1", 134515008)
    assert "sha256" not in told  # 98 MB


def test_gpu_offload_is_not_what_rpc_makes_of_it() -> None:
    about = backend.about()
    types = {device["type"] for device in about["devices"]}  # type: ignore[attr-defined]  # a list
    assert about["gpu_offload"] == bool(types & {"gpu", "igpu"})


def test_it_is_a_backend_factory() -> None:
    assert isinstance(backend, BackendFactory)
