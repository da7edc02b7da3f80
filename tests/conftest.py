"""Models for tests; a test whose real model is not there is skipped, saying how to get it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import find_browser
from serving import pair_with_template
from tiny_hf import make

os.environ["SPECX_CACHE"] = tempfile.mkdtemp(prefix="specx-cache-")
"""Tests must not depend on what their developer measured, nor leave anything there."""
MODELS = Path(__file__).resolve().parent.parent / "models"


def _present(path: Path, command: str) -> Path:
    if not path.is_file():
        pytest.skip(f"{path.name} is not in {path.parent}; get it with: {command}")
    return path


def _fetched(file: str, name: str) -> Path:
    folder = Path(os.environ.get("SPECX_TEST_MODELS") or MODELS / "test")
    return _present(folder / file, f"scripts/fetch_test_models.py {name}")


def _trained(file: str) -> Path:
    return _present(MODELS / "demo" / file, "scripts/train_demo_pair.py")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return _fetched("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2")


@pytest.fixture(scope="session")
def qwen05() -> Path:
    return _fetched("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "qwen05")


@pytest.fixture(scope="session")
def qwen15() -> Path:
    return _fetched("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "qwen15")


@pytest.fixture(scope="session")
def qwen15_f16() -> Path:
    return _fetched("qwen2.5-coder-1.5b-instruct-f16.gguf", "qwen15-f16")


@pytest.fixture(scope="session")
def gemma() -> Path:
    return _fetched("gemma-3-270m-q4_k_m.gguf", "gemma")


@pytest.fixture(scope="session")
def demo_verifier() -> Path:
    return _trained("specx-demo-verifier.gguf")


@pytest.fixture(scope="session")
def demo_drafter() -> Path:
    return _trained("specx-demo-drafter.gguf")


@pytest.fixture(scope="session")
def chat_pair(
    demo_verifier: Path, demo_drafter: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[str]:
    """Options of `specx serve` for the demo pair with a chat template."""
    return pair_with_template(demo_verifier, demo_drafter, tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium; by module, since an event loop runs in this thread while it is there."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs the extra 'browser': pip install 'specx[browser]'"
    )
    executable = find_browser()
    with playwright.sync_playwright() as runner:
        started = runner.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of tiny models for transformers, by kind; each is made once."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = make(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return folder


@pytest.fixture(scope="session")
def tiny_llama(tiny_folders: Callable[[str], Path]) -> Path:
    return tiny_folders("llama")


@pytest.fixture(scope="session")
def weights_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """GGUF weights for transformers: a model loads from here in two seconds instead of ten."""
    pytest.importorskip("torch")
    return str(tmp_path_factory.mktemp("weights"))
