"""The pair that comes with specx: used when no model is named, never with a user's own."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from inprocess import specx

from specx import LoadOptions, LogitsBackend, Pair, SamplingParams, Session, Settings, get_backend

ROOT = Path(__file__).parent.parent
SOURCE = 'import os\n\n\ndef read(path):\n    """Return the text of a file."""\n    with open(path'


def test_it_is_the_default_and_named_as_such(demo_verifier: Path, tmp_path: Path) -> None:
    done = specx("run", "-p", "def fibonacci(n):", "-n", "48", "-s", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    for words in ("demo pair", "too small to gain", "alpha 0.", "-m VERIFIER.gguf"):
        assert words in done.stderr


def test_json_says_which_models_ran(demo_verifier: Path, demo_drafter: Path) -> None:
    result = json.loads(specx("run", "-p", "import ", "-n", "32", "--json").stdout)
    assert result["settings"]["demo_pair"] is True
    files = [result["models"][role]["file"] for role in ("verifier", "drafter")]
    assert [Path(file).name for file in files] == [demo_verifier.name, demo_drafter.name]
    assert all(result["models"][role]["sha256"] for role in ("verifier", "drafter"))


def test_its_drafter_never_joins_a_model_of_the_users(demo_verifier: Path) -> None:
    result = json.loads(
        specx("run", "-m", str(demo_verifier), "-p", "x", "-n", "4", "--json").stdout
    )
    assert "drafter" not in result["models"]
    assert result["settings"]["demo_pair"] is False


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_without_arguments_a_terminal_sees_a_sample(demo_verifier: Path) -> None:
    import pty

    main, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "specx", "run", "-n", "24"], stdin=side, stdout=side, stderr=side
    )
    os.close(side)
    shown = b""
    try:
        while part := os.read(main, 4096):
            shown += part
    except OSError:  # the other end was closed
        pass
    os.close(main)
    assert process.wait(timeout=60) == 0
    for words in (b"def fibonacci(n):", b"demo pair", b"specx run --help"):
        assert words in shown


@pytest.fixture(scope="module")
def verifier(demo_verifier: Path) -> LogitsBackend:
    return get_backend("llamacpp").load(str(demo_verifier), LoadOptions())


@pytest.fixture(scope="module")
def drafter(demo_drafter: Path) -> LogitsBackend:
    return get_backend("llamacpp").load(str(demo_drafter), LoadOptions())


def test_an_empty_prompt_begins_a_file(verifier: LogitsBackend) -> None:
    tokens = verifier.tokenizer.encode("", add_special=True, parse_special=False)
    assert tokens == [verifier.tokenizer.bos_id]


def test_half_its_completions_are_python(verifier: LogitsBackend, drafter: LogitsBackend) -> None:
    heads = ["read(path)", "add(a, b)", "is_empty(self)", "get(self, key, default=None)",
             "close(self)", "main()", "split(text, sep=None)", "__init__(self, name)",
             "__repr__(self)", "find(self, value)", "copy(self)", "write(self, data)",
             "parse(line)", "append(self, item)", "size(self)", "reset(self)", "flush(self)",
             "load(name)", "check(value)", "join(parts)"]  # fmt: skip
    pair = Pair(verifier, drafter)
    good = sum(parses(write(pair, f"def {head}:", seed)) for seed, head in enumerate(heads))
    print(f"\n{good} of {len(heads)} completions parse")
    assert good >= len(heads) // 2


def write(pair: Pair, prompt: str, seed: int) -> str:
    """A prompt and its completion, trimmed to the last whole line where the length cut it."""
    with Session(pair, defaults=Settings()) as session:
        result = session.generate(prompt, max_tokens=128, seed=seed, raw=True)
    text = prompt + result.text
    return text if result.stop_reason == "eos" else text[: text.rindex("\n") + 1]


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


@pytest.mark.parametrize("side", ["demo_verifier", "demo_drafter"])
def test_both_runtimes_agree_on_its_weights(side: str, request: pytest.FixtureRequest) -> None:
    path = str(request.getfixturevalue(side))
    with (
        get_backend("llamacpp").load(path, LoadOptions()) as one,
        get_backend("hf").load(path, LoadOptions(threads=1)) as other,
    ):
        tokens = one.tokenizer.encode(SOURCE, add_special=True, parse_special=False)
        assert tokens == other.tokenizer.encode(SOURCE, add_special=True, parse_special=False)
        for model in (one, other):
            model.truncate(0)
        logits = [model.forward(tokens, len(tokens)) for model in (one, other)]
    apart = np.abs(logits[0] - logits[1]).max()
    print(f"\n{side}: logits differ by up to {apart:.4f}")
    assert apart <= 0.05


def test_the_training_script_makes_a_pair_that_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "train_demo_pair.py"), "--smoke"]
    command += ["--out", str(tmp_path / "pair"), "--work-dir", str(tmp_path / "work")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    files = [str(tmp_path / "pair" / f"specx-demo-{side}.gguf") for side in ("verifier", "drafter")]
    result = specx(
        "run",
        "-m",
        files[0],
        "-md",
        files[1],
        "-p",
        "def f(x):",
        "-n",
        "16",
        "--ignore-eos",
        "-s",
        "1",
        "--json",
    )
    assert json.loads(result.stdout)["n_tokens"] > 0, result.stderr
    assert (tmp_path / "pair" / "README.md").read_text().startswith("#")


def test_greedy_text_is_the_verifiers_own(verifier: LogitsBackend, drafter: LogitsBackend) -> None:
    greedy = Settings(sampling=SamplingParams(temperature=0))
    texts = []
    for pair in (Pair(verifier), Pair(verifier, drafter)):
        with Session(pair, defaults=greedy) as session:
            texts.append(session.generate("class Stack:\n", max_tokens=64).tokens)
    assert texts[0] == texts[1]
