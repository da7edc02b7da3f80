"""The transformers backend: every kind of cache, its options, and the text of folders."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_hf import WINDOW, complaint, encode, load

from specx.errors import BackendError, ContextError
from specx_backends import hf_loading
from specx_backends.gguf_tokens import end_ids
from specx_backends.hf import backend

pytest.importorskip("torch")

TEXT = "the cat sat on the mat and the dog sat on the cat. " * 3


# Forgetting, by kind of cache


@pytest.mark.parametrize(
    ("kind", "rollback"),
    [("llama", "native"), ("mistral", "native"), ("gemma3", "native"), ("mamba", "checkpoint")],
)
def test_rollback_beyond_the_window_leaves_a_fresh_runs_logits(
    tiny_folders: Callable[[str], Path], kind: str, rollback: str
) -> None:
    with load(tiny_folders(kind)) as model, load(tiny_folders(kind)) as fresh:
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
def test_positions_inside_a_draft_can_be_kept(
    tiny_folders: Callable[[str], Path], kind: str
) -> None:
    with load(tiny_folders(kind)) as model, load(tiny_folders(kind)) as fresh:
        ids = encode(model, TEXT)[:40]
        model.forward(ids[:20])
        model.checkpoint()
        model.forward([*ids[20:26], 7, 8, 9])
        model.truncate(26)
        rows = model.forward(ids[26:], 14)
        np.testing.assert_allclose(rows, fresh.forward(ids, 14), atol=1e-4)


@pytest.mark.parametrize("kind", ["mistral", "gemma3"])
def test_a_window_hides_what_lies_before_it(tiny_folders: Callable[[str], Path], kind: str) -> None:
    """Else the two tests above would hold of a model that ignores its window."""
    import transformers

    with load(tiny_folders(kind)) as model:
        ids = encode(model, TEXT)[: 3 * WINDOW]
        rows = model.forward(ids, len(ids))
        python = transformers.AutoModelForCausalLM.from_pretrained(str(tiny_folders(kind)))
        import torch

        with torch.inference_mode():
            want = python(torch.tensor([ids]), use_cache=False).logits[0].numpy()
        np.testing.assert_allclose(rows, want, atol=1e-4)


def test_a_recurrent_model_returns_to_its_checkpoint_and_not_before(
    tiny_folders: Callable[[str], Path],
) -> None:
    with load(tiny_folders("mamba")) as model:
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
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(tiny_llama, n_batch=4) as model, load(tiny_llama) as fresh:
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


def test_only_wanted_rows_are_computed(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(tiny_llama) as model:
        asked: list[int] = []
        run: Any = model._model.forward  # type: ignore[attr-defined]  # no public way in

        def spy(*given: object, logits_to_keep: int, **named: object) -> object:
            asked.append(logits_to_keep)
            return run(*given, logits_to_keep=logits_to_keep, **named)

        monkeypatch.setattr(model._model, "forward", spy)  # type: ignore[attr-defined]
        for n_logits in (0, 1, 3):
            assert model.forward([5, 6, 7], n_logits).shape == (n_logits, 320)
        assert asked == [1, 1, 3]  # 0 would compute all


# Options


def test_options_that_cannot_be_met(tiny_llama: Path, tmp_path: Path) -> None:
    assert "dtype 'int8' is unknown; known: float32" in complaint(tiny_llama, dtype="int8")
    assert "dtype 'Tensor' is unknown" in complaint(tiny_llama, dtype="Tensor")
    message = complaint(tiny_llama, dtype="float8_e4m3fn")
    assert message.startswith("device 'cpu' cannot compute in float8_e4m3fn")
    assert "device 'tpu' is not here; here are: " in complaint(tiny_llama, device="tpu")
    assert "n_ctx is 0" in complaint(tiny_llama, n_ctx=0)
    assert "is not a folder" in complaint(tiny_llama, weights_cache=str(tmp_path / "none"))
    assert "n_gpu_layers" in complaint(tiny_llama, n_gpu_layers=1)


def test_dtype_and_threads_are_honoured(tiny_llama: Path) -> None:
    import torch

    before = torch.get_num_threads()
    try:
        with load(tiny_llama, dtype="bfloat16", threads=before + 1) as model:
            described = model.describe()
            assert described["dtype"] == "bfloat16"
            assert described["threads"] == before + 1
            assert model.forward([5, 6], 2).dtype == np.float32
    finally:
        torch.set_num_threads(before)


def test_slow_cores_do_not_compute_unless_asked(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        for fast, threads in ((3, 3), (8, 3)):  # the second finds fewer than the fast ones: kept
            monkeypatch.setattr(hf_loading, "physical_cores", lambda fast=fast: fast)
            load(tiny_llama).close()
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("able", "drafts", "asked", "used"),
    [
        (True, True, None, "bfloat16"),
        (False, True, None, "float32"),
        (True, False, None, "float32"),
        (True, True, "float32", "float32"),
    ],
)
def test_what_only_drafts_is_coarser_where_that_is_faster(
    tiny_llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    able: bool,
    drafts: bool,
    asked: str | None,
    used: str,
) -> None:
    import torch

    known = {"avx512": True, "avx512_bf16": able, "amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    with load(tiny_llama, drafts=drafts, dtype=asked) as model:
        assert model.describe()["dtype"] == used


def test_a_torch_that_knows_no_capabilities_drafts_in_float32(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    with load(tiny_llama, drafts=True) as model:
        assert model.describe()["dtype"] == "float32"


def test_the_processor_computes_in_float32(tmp_path: Path, tiny_llama: Path) -> None:
    for file in tiny_llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tiny_llama / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    with load(tmp_path) as model:
        assert model.describe()["dtype"] == "float32"


def test_context(tiny_llama: Path) -> None:
    with load(tiny_llama, need_ctx=lambda tokenizer: 9999) as model:
        assert model.n_ctx == 128  # what it was trained on
    with load(tiny_llama, n_ctx=8) as model:
        model.forward(range(8), 0)
        with pytest.raises(ContextError, match="exceed the context of 8"):
            model.forward([5])
    with pytest.warns(UserWarning, match="exceeds the 128 positions"):
        load(tiny_llama, n_ctx=500).close()


def test_a_recurrent_model_has_no_trained_length(tiny_folders: Callable[[str], Path]) -> None:
    with load(tiny_folders("mamba"), need_ctx=lambda tokenizer: 9999) as model:
        assert model.n_ctx == 9999


def test_a_folder_describes_itself(tiny_llama: Path) -> None:
    with load(tiny_llama) as model:
        described = model.describe()
    assert json.loads(json.dumps(described)) == described
    assert described["file"] == str(tiny_llama)
    assert described["bytes"] == (tiny_llama / "model.safetensors").stat().st_size
    assert described["quantisation"] is None
    assert described["attention"] == "sdpa"
    assert described["architecture"] == "llama"


def test_its_module_can_be_used_beside_its_cache(tiny_llama: Path) -> None:
    import torch

    model = load(tiny_llama)
    wanted = model.forward([5, 6, 7], n_logits=3)
    module = model.module  # type: ignore[attr-defined]  # of this backend alone
    found = module(torch.tensor([[5, 6, 7]])).logits[0].detach().numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert model.n_past == 3
    model.close()
    with pytest.raises(BackendError, match="was closed"):
        model.module  # type: ignore[attr-defined]  # noqa: B018


def test_close_frees_the_weights(tiny_llama: Path) -> None:
    import gc
    import weakref

    model = load(tiny_llama)
    weights = weakref.ref(model._model)  # type: ignore[attr-defined]  # no public way in
    model.close()
    model.close()
    gc.collect()
    assert weights() is None


@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_a_missing_library_tells_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tiny_llama: Path, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for call in (lambda: load(tiny_llama), backend.about):
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


def test_a_folders_tokenizer(tiny_llama: Path) -> None:
    with load(tiny_llama) as model:
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


def test_every_end_token_of_the_configurations_ends(tmp_path: Path, tiny_llama: Path) -> None:
    for file in tiny_llama.iterdir():
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


def test_sentencepiece_spelling(tmp_path: Path, tiny_llama: Path) -> None:
    import tokenizers

    for file in tiny_llama.iterdir():
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
