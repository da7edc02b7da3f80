"""The transformers backend: tiny random models of many kinds, and the same ids as llama.cpp."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specx.backend import LoadOptions, LogitsBackend, Tokenizer
from specx.chat import encode_chat, render_chat
from specx.errors import BackendError, ContextError, SpecxError
from specx_backends import hf_loading
from specx_backends.hf import backend
from specx_backends.hf import chunks as chunk_calls
from specx_backends.hf_tokenizer import BYTES, end_ids, gguf_tokenizer
from specx_backends.llamacpp import backend as llamacpp

pytest.importorskip("torch")

TEXT = "the cat sat on the mat and the dog sat on the cat. " * 3
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
    "openai-gpt": ("OpenAIGPTConfig", "OpenAIGPTLMHeadModel", {"vocab_size": 320, "n_embd": 32}),
    "bert": ("BertConfig", "BertForMaskedLM", {k: SHAPE[k] for k in list(SHAPE)[:5]}),
    "t5": ("T5Config", "T5ForConditionalGeneration", {"vocab_size": 320, "d_model": 32}),
}
SIZES = {"openai-gpt": {"n_layer": 1, "n_head": 2}, "t5": {"d_ff": 32, "num_layers": 1}}


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


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = make(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return folder


@pytest.fixture(scope="session")
def llama(folders: Callable[[str], Path]) -> Path:
    return folders("llama")


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


# Forgetting, by kind of cache


@pytest.mark.parametrize(
    ("kind", "rollback"),
    [("llama", "native"), ("mistral", "native"), ("gemma3", "native"), ("mamba", "checkpoint")],
)
def test_rollback_beyond_the_window_leaves_a_fresh_runs_logits(
    folders: Callable[[str], Path], kind: str, rollback: str
) -> None:
    with load(folders(kind)) as model, load(folders(kind)) as fresh:
        ids = encode(model, TEXT)[: 3 * WINDOW]
        assert model.rollback == rollback
        want = fresh.forward(ids, len(ids))
        for start in range(0, len(ids), 6):
            model.checkpoint()
            model.forward(ids[5:17])
            model.truncate(start)
            rows = model.forward(ids[start : start + 6], 6)
            np.testing.assert_allclose(rows, want[start : start + 6], atol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3", "mamba"])
def test_positions_inside_a_draft_can_be_kept(folders: Callable[[str], Path], kind: str) -> None:
    with load(folders(kind)) as model, load(folders(kind)) as fresh:
        ids = encode(model, TEXT)[:40]
        model.forward(ids[:20])
        model.checkpoint()
        model.forward([*ids[20:26], 7, 8, 9])
        model.truncate(26)
        rows = model.forward(ids[26:], 14)
        np.testing.assert_allclose(rows, fresh.forward(ids, 14), atol=1e-4)


@pytest.mark.parametrize("kind", ["mistral", "gemma3"])
def test_a_window_hides_what_lies_before_it(folders: Callable[[str], Path], kind: str) -> None:
    """Else the two tests above would hold of a model that ignores its window."""
    import transformers

    with load(folders(kind)) as model:
        ids = encode(model, TEXT)[: 3 * WINDOW]
        rows = model.forward(ids, len(ids))
        python = transformers.AutoModelForCausalLM.from_pretrained(str(folders(kind)))
        import torch

        with torch.inference_mode():
            want = python(torch.tensor([ids]), use_cache=False).logits[0].numpy()
        np.testing.assert_allclose(rows, want, atol=1e-4)


def test_a_recurrent_model_returns_to_its_checkpoint_and_not_before(
    folders: Callable[[str], Path],
) -> None:
    with load(folders("mamba")) as model:
        ids = encode(model, TEXT)[:20]
        model.forward(ids[:10])
        model.checkpoint()
        first = model.forward(ids[10:14], 4)
        for _ in range(2):
            model.truncate(10)
            np.testing.assert_array_equal(model.forward(ids[10:14], 4), first)
        with pytest.raises(BackendError, match="before the checkpoint at 10"):
            model.truncate(9)
        assert model.n_past == 14


def test_a_failed_call_leaves_the_cache_as_it_was(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(llama, n_batch=4) as model, load(llama) as fresh:
        ids = encode(model, TEXT)
        model.forward(ids[:6])
        layer: Any = model._model.model.layers[1]  # type: ignore[attr-defined]  # no public way in
        calls: list[object] = []

        def fail(*given: object, **named: object) -> None:
            calls.append(given)
            raise RuntimeError("no luck\nat all")

        with monkeypatch.context() as patch:
            patch.setattr(layer, "forward", fail)
            with pytest.raises(BackendError, match="at position 6 were not computed: no luck$"):
                model.forward(ids[6:12])
        assert calls
        assert model.n_past == 6
        np.testing.assert_allclose(model.forward(ids[6:9], 3), fresh.forward(ids[:9], 3), atol=1e-5)


@pytest.mark.parametrize(
    ("n_tokens", "n_logits", "first", "rest", "calls"),
    [
        (5, 2, 8, 8, [(0, 5, 2)]),
        (5, 0, 2, 2, [(0, 2, 0), (2, 4, 0), (4, 5, 0)]),
        (5, 4, 2, 2, [(0, 2, 1), (2, 4, 2), (4, 5, 1)]),
        (5, 2, 3, 1, [(0, 3, 0), (3, 4, 1), (4, 5, 1)]),
    ],
)
def test_calls_are_cut_to_the_batch(
    n_tokens: int, n_logits: int, first: int, rest: int, calls: list[tuple[int, int, int]]
) -> None:
    assert list(chunk_calls(n_tokens, n_logits, first, rest)) == calls


def test_only_wanted_rows_are_computed(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(llama) as model:
        asked: list[int] = []
        run: Any = model._model.forward  # type: ignore[attr-defined]  # no public way in

        def spy(*given: object, logits_to_keep: int, **named: object) -> object:
            asked.append(logits_to_keep)
            return run(*given, logits_to_keep=logits_to_keep, **named)

        monkeypatch.setattr(model._model, "forward", spy)  # type: ignore[attr-defined]
        for n_logits in (0, 1, 3):
            assert model.forward([5, 6, 7], n_logits).shape == (n_logits, 320)
        assert asked == [1, 1, 3]  # 0 would compute all


# What cannot be loaded


def test_wrong_paths(tmp_path: Path, llama: Path) -> None:
    assert "cannot read model" in complaint(tmp_path / "missing.gguf")
    assert "without a config.json" in complaint(tmp_path)
    (tmp_path / "model.gguf").write_text("no model")
    assert "not a GGUF file" in complaint(tmp_path / "model.gguf")
    assert f"such as '{tmp_path / 'model.gguf'}'" in complaint(tmp_path)


def test_a_folder_without_weights(tmp_path: Path, llama: Path) -> None:
    (tmp_path / "config.json").write_bytes((llama / "config.json").read_bytes())
    assert "holds no weights" in complaint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    assert "pickled weights only (pytorch_model.bin)" in complaint(tmp_path)


def test_a_damaged_folder(tmp_path: Path, llama: Path) -> None:
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "download it again" in complaint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert str(tmp_path) in complaint(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "of the future"}')
    assert "pip install -U transformers" in complaint(tmp_path)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bert", "no decoder (bert)"),
        ("t5", "encoder-decoder model (t5)"),
        ("openai-gpt", "keeps no KV cache"),
    ],
)
def test_models_without_a_cache(folders: Callable[[str], Path], kind: str, reason: str) -> None:
    assert reason in complaint(folders(kind))


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path, llama: Path) -> None:
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((llama / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "code.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = tmp_path / "ran"
    (tmp_path / "code.py").write_text(f"open({str(ran)!r}, 'w')\nclass Config: pass\n")
    assert str(tmp_path) in complaint(tmp_path)
    assert not ran.exists()


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_a_cut_gguf(tmp_path: Path, smollm2: Path, size: int) -> None:
    path = tmp_path / "cut.gguf"
    with smollm2.open("rb") as file:
        path.write_bytes(file.read(size))
    assert "download it again" in complaint(path)


@pytest.fixture
def empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hub's library with an empty cache."""
    import huggingface_hub
    import huggingface_hub.constants  # imported by nobody yet where this test runs alone

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return huggingface_hub


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_hub_id_offline(empty_hub: Any, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("asked the network")

    monkeypatch.setattr(empty_hub.HfApi, "model_info", refuse)
    monkeypatch.setattr(empty_hub.constants, "HF_HUB_OFFLINE", by == "environment")
    message = complaint("nobody/nothing", offline=True if by == "option" else None)
    assert "'nobody/nothing' is no file or folder" in message
    assert "the network is off" in message


def test_a_hub_id_with_the_network_away(empty_hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, name: str, timeout: float) -> None:
        raise OSError("Name or service not known\nsecond line")

    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("tried to download")

    download = empty_hub.snapshot_download
    monkeypatch.setattr(empty_hub.HfApi, "model_info", fail)
    monkeypatch.setattr(
        empty_hub,
        "snapshot_download",
        lambda *a, **k: download(*a, **k) if k.get("local_files_only") else refuse(),
    )
    message = complaint("nobody/nothing")
    assert "cannot be downloaded (Name or service not known); check the name" in message


def test_a_cached_hub_id_needs_no_network(
    empty_hub: Any, monkeypatch: pytest.MonkeyPatch, llama: Path, tmp_path: Path
) -> None:
    commit = "0" * 40
    repo = tmp_path / "models--some--model"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    snapshot = repo / "snapshots" / commit
    snapshot.parent.mkdir()
    snapshot.symlink_to(llama, target_is_directory=True)
    monkeypatch.setattr(empty_hub.HfApi, "model_info", None)
    with load("some/model") as model:
        assert model.name == "hf:some/model"
        assert model.forward([5]).shape == (1, 320)


# Options


def test_options_that_cannot_be_met(llama: Path, tmp_path: Path) -> None:
    assert "dtype 'int8' is unknown; known: float32" in complaint(llama, dtype="int8")
    assert "dtype 'Tensor' is unknown" in complaint(llama, dtype="Tensor")
    message = complaint(llama, dtype="float8_e4m3fn")
    assert message.startswith("device 'cpu' cannot compute in float8_e4m3fn")
    assert "device 'tpu' is not here; here are: " in complaint(llama, device="tpu")
    assert "n_ctx is 0" in complaint(llama, n_ctx=0)
    assert "is not a folder" in complaint(llama, weights_cache=str(tmp_path / "none"))
    assert "n_gpu_layers" in complaint(llama, n_gpu_layers=1)


def test_dtype_and_threads_are_honoured(llama: Path) -> None:
    import torch

    before = torch.get_num_threads()
    try:
        with load(llama, dtype="bfloat16", threads=before + 1) as model:
            described = model.describe()
            assert described["dtype"] == "bfloat16"
            assert described["threads"] == before + 1
            assert model.forward([5, 6], 2).dtype == np.float32
    finally:
        torch.set_num_threads(before)


def test_the_processor_computes_in_float32(tmp_path: Path, llama: Path) -> None:
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((llama / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    with load(tmp_path) as model:
        assert model.describe()["dtype"] == "float32"


def test_context(llama: Path) -> None:
    with load(llama, need_ctx=lambda tokenizer: 9999) as model:
        assert model.n_ctx == 128  # what it was trained on
    with load(llama, n_ctx=8) as model:
        model.forward(range(8), 0)
        with pytest.raises(ContextError, match="exceed the context of 8"):
            model.forward([5])
    with pytest.warns(UserWarning, match="exceeds the 128 positions"):
        load(llama, n_ctx=500).close()


def test_a_recurrent_model_has_no_trained_length(folders: Callable[[str], Path]) -> None:
    with load(folders("mamba"), need_ctx=lambda tokenizer: 9999) as model:
        assert model.n_ctx == 9999


def test_a_folder_describes_itself(llama: Path) -> None:
    with load(llama) as model:
        described = model.describe()
    assert json.loads(json.dumps(described)) == described
    assert described["file"] == str(llama)
    assert described["bytes"] == (llama / "model.safetensors").stat().st_size
    assert described["quantisation"] is None
    assert described["attention"] == "sdpa"
    assert described["architecture"] == "llama"


def test_its_module_can_be_used_beside_its_cache(llama: Path) -> None:
    import torch

    model = load(llama)
    wanted = model.forward([5, 6, 7], n_logits=3)
    module = model.module  # type: ignore[attr-defined]  # of this backend alone
    found = module(torch.tensor([[5, 6, 7]])).logits[0].detach().numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert model.n_past == 3
    model.close()
    with pytest.raises(BackendError, match="was closed"):
        model.module  # type: ignore[attr-defined]  # noqa: B018


def test_close_frees_the_weights(llama: Path) -> None:
    import gc
    import weakref

    model = load(llama)
    weights = weakref.ref(model._model)  # type: ignore[attr-defined]  # no public way in
    model.close()
    model.close()
    gc.collect()
    assert weights() is None


@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_a_missing_library_tells_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, llama: Path, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for call in (lambda: load(llama), backend.about):
        with pytest.raises(
            BackendError, match=r"^\w+ is not installed; pip install 'specx\[hf\]'$"
        ):
            call()


def test_importing_the_backend_imports_no_runtime() -> None:
    import subprocess

    code = "import sys, specx_backends.hf; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Text, in folders


def test_a_folders_tokenizer(llama: Path) -> None:
    with load(llama) as model:
        tokenizer = model.tokenizer
        text = "añ 😀\t</s>"
        ids = encode(model, text)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
        assert tokenizer.encode("a", add_special=True, parse_special=False)[0] == 0
        assert tokenizer.encode("</s>", add_special=False, parse_special=True) == [1]
        assert tokenizer.encode("</s>", add_special=False, parse_special=False) != [1]
        assert tokenizer.eog_ids == {1}
        assert tokenizer.token_bytes(1) == b""
        assert tokenizer.token_text(1) == "</s>"
        assert tokenizer.padding_ids.tolist() == list(range(258, 320))
        assert tokenizer.token_text(300) == ""
        with pytest.raises(BackendError, match="token 320 is outside"):
            tokenizer.token_bytes(320)
        with pytest.raises(BackendError, match="is no character"):
            encode(model, "\udc80")


def test_every_end_token_of_the_configurations_ends(tmp_path: Path, llama: Path) -> None:
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 7]}')
    with load(tmp_path) as model:
        assert model.tokenizer.eog_ids == {1, 7}


def test_some_texts_end_only_without_others() -> None:
    ids = {"<|end|>": 1, "<|return|>": 2, "<|call|>": 3, "<|endoftext|>": 4}
    assert end_ids({"<|end|>": 1}) == {1}
    assert end_ids(ids) == {2, 3, 4}
    assert end_ids({"</s>": 1, "<|tool_response>": 2}) == {2}
    assert end_ids({"[PAD]": 1, "<fim_pad>": 2}) == {2}
    assert end_ids({"[PAD]": 1, "<fim_pad>": 2}, {"fim_pad": 1, "eot": 5}) == {1, 5}


def test_sentencepiece_spelling(tmp_path: Path, llama: Path) -> None:
    import tokenizers

    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    vocab = {"<s>": 0, "</s>": 1, "<0xE2>": 2, "▁the": 3, "a": 4, "▁": 5}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], byte_fallback=True))
    core.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback()]
    )
    core.add_special_tokens(["<s>", "</s>"])
    core.save(str(tmp_path / "tokenizer.json"))
    with load(tmp_path) as model:
        spelled = [model.tokenizer.token_bytes(token) for token in range(6)]
    assert spelled == [b"", b"", b"\xe2", b" the", b"a", b" "]


# Text, and logits, of the same GGUF file on two runtimes

AWKWARD = {
    "empty": "",
    "space": " ",
    "words": "plain words, and 3.14; don't, I'LL, it's",
    "digits": "year 2024, 12345678901 x10 1,000,000 ½²③",
    "white": "tab\tand\n\n  \n newlines\r\n  two  spaces   \n",
    "spaces": " " * 300 + "x",
    "emoji": "😀 👨‍👩‍👧 👍🏽",
    "right to left": "شكرا שלום",
    "scripts": "हिन्दी ไทย 日本語 한국어 Ελλάδα",
    "forms": "cafe\u0301 caf\u00e9 ﬁ Å \u212b \ufffd\u00a0\u2003",
    "control": "<|im_start|>user\nhi<|im_end|>\n<|endoftext|></s> <s>",
    "tags": "<repo_name>x<reponame> <|fim_prefix|>a<|fim_suffix|><tool_call> [PAD151936]<think>",
    "bytes": "\x00\x01\x7f",
    "one letter": "a" * 10_000,
    "code": "def f(x):\n\treturn {'a': [1, 2]}  # 100%\n",
}
Pair = tuple[LogitsBackend, LogitsBackend]
Tokenizers = tuple[Tokenizer, Tokenizer, int]


@pytest.fixture(scope="module", params=["smollm2", "qwen05", "qwen15"])
def tokenizers(request: pytest.FixtureRequest) -> Iterator[Tokenizers]:
    """Of the same file on transformers, without its weights, and on llama.cpp; their size."""
    path: Path = request.getfixturevalue(request.param)
    metadata = hf_loading.read_gguf(path)
    n_vocab = len(metadata["tokenizer.ggml.tokens"])
    ours = gguf_tokenizer(path, metadata, n_vocab)
    with llamacpp.load(str(path), LoadOptions(n_ctx=8, n_gpu_layers=0)) as theirs:
        assert theirs.n_vocab == n_vocab
        yield ours, theirs.tokenizer, n_vocab


@pytest.fixture(scope="module", params=["smollm2", "qwen05"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """The same file on transformers and on llama.cpp."""
    path: Path = request.getfixturevalue(request.param)
    options = LoadOptions(n_ctx=256, n_gpu_layers=0)
    with load(path, n_ctx=256) as ours, llamacpp.load(str(path), options) as theirs:
        yield ours, theirs


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("add_special", [False, True])
@pytest.mark.parametrize("parse_special", [False, True])
def test_the_same_ids_as_llamacpp(
    tokenizers: Tokenizers, name: str, add_special: bool, parse_special: bool
) -> None:
    ours, theirs = (
        tokenizer.encode(AWKWARD[name], add_special=add_special, parse_special=parse_special)
        for tokenizer in tokenizers[:2]
    )
    assert ours == theirs


def test_the_same_vocabulary_as_llamacpp(tokenizers: Tokenizers) -> None:
    ours, theirs, n_vocab = tokenizers
    assert spelling(ours, n_vocab) == spelling(theirs, n_vocab)
    assert ours.eog_ids == theirs.eog_ids
    np.testing.assert_array_equal(ours.padding_ids, theirs.padding_ids)
    assert (ours.bos_id, ours.eos_id) == (theirs.bos_id, theirs.eos_id)
    assert ours.chat_template == theirs.chat_template


@pytest.mark.parametrize("name", AWKWARD)
def test_the_same_chat_as_llamacpp(tokenizers: Tokenizers, name: str) -> None:
    ours, theirs, _ = tokenizers
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi\n"},
        {"role": "assistant", "content": "<|im_start|> hello "},
        {"role": "user", "content": AWKWARD[name]},
    ]
    text = rendered(ours, messages)
    assert AWKWARD[name] in text
    assert text == rendered(theirs, messages)
    assert encode_chat(ours, messages) == encode_chat(theirs, messages)


def rendered(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> str:
    assert tokenizer.chat_template is not None
    bos, eos = (
        "" if token is None else tokenizer.token_text(token)
        for token in (tokenizer.bos_id, tokenizer.eos_id)
    )
    return render_chat(tokenizer.chat_template, messages, bos=bos, eos=eos)


def spelling(tokenizer: Tokenizer, n_vocab: int) -> list[tuple[bytes, str]]:
    return [(tokenizer.token_bytes(i), tokenizer.token_text(i)) for i in range(n_vocab)]


def test_nearly_the_same_logits_as_llamacpp(pair: Pair) -> None:
    """llama.cpp rounds activations to 8 bits before it multiplies them with quantised weights."""
    ids = encode(pair[1], AWKWARD["code"] * 4)[:64]
    ours, theirs = (model.forward(ids, len(ids)) for model in pair)
    apart = np.abs(softmax(ours) - softmax(theirs)).sum(axis=1) / 2
    print(f"{pair[0].name}: total variation {apart.mean():.3f} mean, {apart.max():.3f} at most")
    assert apart.mean() < 0.05
    assert (ours.argmax(axis=1) == theirs.argmax(axis=1)).mean() > 0.9


def softmax(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = np.exp(rows.astype(np.float64) - rows.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return probabilities


# Loading GGUF files


def test_dequantised_weights_are_kept(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    shares: list[float] = []
    with load(smollm2, weights_cache=str(tmp_path), progress=shares.append) as model:
        rows = model.forward([5, 6, 7], 3)
        assert model.describe()["quantisation"] == "Q4_1"
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) > 50
    assert len(list(tmp_path.iterdir())) == 1  # nothing partial stays behind
    monkeypatch.setattr(hf_loading, "dequantise", None)
    with load(smollm2, weights_cache=str(tmp_path)) as model:
        np.testing.assert_array_equal(model.forward([5, 6, 7], 3), rows)
    assert capfd.readouterr() == ("", "")


def test_a_failed_store_leaves_nothing(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unwritable:
        class config:
            quantization_config = None

        def save_pretrained(self, folder: str) -> None:
            Path(folder, "model.safetensors").write_bytes(b"part")
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(hf_loading, "dequantise", lambda *given: Unwritable())
    assert "cannot be written (No space left on device)" in complaint(
        smollm2, weights_cache=str(tmp_path)
    )
    assert list(tmp_path.iterdir()) == []


def test_libraries_are_left_as_they_were(smollm2: Path) -> None:
    gguf = importlib.import_module("gguf")
    loader = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    before = (gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm)
    with hf_loading.parsed_once(LoadOptions()):
        assert gguf.GGUFReader is not before[0]
    assert (gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm) == before
