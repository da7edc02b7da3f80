"""`specx check`: what files say of models, alone and in pairs, and what becomes of it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tiny_gguf
from inprocess import specx
from tiny_gguf import KINDS, TOKENS, Kind, number, strings, text

import check_schema
import try_cases
from cases import odd_gguf
from cases.fuzz import FUZZERS
from specx.check import Candidate, CheckRecord, check_models
from specx.check import report as report_module
from specx.errors import ContextError
from specx.runtime.backend import LoadOptions, get_backend
from specx.runtime.inspection import Inspection

SCHEMA = json.loads((Path(check_schema.__file__).parents[1] / check_schema.PATH).read_text())
NORMAL, CONTROL, UNUSED = 1, 3, 5
MIB = 1 << 20
USER_ONLY = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def kinds(values: list[int]) -> tiny_gguf.Field:
    return values, Kind.ARRAY, Kind.INT32


def check(*args: object) -> tuple[int, dict[str, Any]]:
    """Exit code and record."""
    done = specx("check", "--json", *map(str, args))
    assert done.stderr == ""
    record = json.loads(done.stdout)
    jsonschema.validate(record, SCHEMA)
    assert done.returncode == (1 if record["verdict"] == "cannot" else 0)
    assert bool(record["faults"]) == (record["verdict"] == "cannot")
    return done.returncode, record


def pair(verifier: Path, drafter: Path, *args: object) -> dict[str, Any]:
    return check("-m", verifier, "-md", drafter, *args)[1]


def alone(path: Path, *args: object) -> dict[str, Any]:
    return check("-m", path, *args)[1]


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Path]:
    """Makes a sound tiny llama, with fields changed."""

    def make(name: str, **put: tiny_gguf.Field | None) -> Path:
        fields = {key.replace("__", "."): field for key, field in put.items()}
        return tiny_gguf.write(tmp_path / f"{name}.gguf", put=fields)

    return make


@pytest.fixture
def larger(tmp_path: Path) -> Path:
    """A verifier to the tiny llamas: the same model in a larger file."""
    tensors = tiny_gguf.llama_tensors()
    tensors["output.weight"] = tensors["token_embd.weight"]
    return tiny_gguf.write(tmp_path / "larger.gguf", tensors=tensors)


# Pairs


def test_the_demo_pair_is_good() -> None:
    code, record = check()
    assert (code, record["verdict"], record["limits"]) == (0, "good", [])
    assert record["pair"] | {"size_ratio": 0} == {
        "n_shared": 2048,
        "n_differing": 0,
        "first_differing": [],
        "fits": True,
        "size_ratio": 0,
    }
    assert [model["role"] for model in record["models"]] == ["verifier", "drafter"]


def padded(path: Path, count: int, *, larger: bool = False) -> Path:
    """A tiny llama with `count` ids behind which there is no token."""
    tensors = tiny_gguf.llama_tensors()
    rows = tensors["token_embd.weight"]
    tensors["token_embd.weight"] = rows.repeat(2, 0)[: len(rows) + count]
    if larger:
        tensors["output.weight"] = tensors["token_embd.weight"]
    put = {
        "tokenizer.ggml.tokens": strings([*TOKENS, *(f"[PAD{i}]" for i in range(count))]),
        "tokenizer.ggml.token_type": kinds([*KINDS, *[UNUSED] * count]),
        "tokenizer.ggml.scores": ([0.0] * (len(TOKENS) + count), Kind.ARRAY, Kind.FLOAT32),
    }
    return tiny_gguf.write(path, tensors=tensors, put=put)


@pytest.mark.parametrize("counts", [(0, 14), (14, 0), (3, 14)])
def test_padded_vocabularies_are_the_same_tokens(tmp_path: Path, counts: tuple[int, int]) -> None:
    verifier = padded(tmp_path / "v.gguf", counts[0], larger=True)
    drafter = padded(tmp_path / "d.gguf", counts[1])
    record = pair(verifier, drafter)
    assert (record["verdict"], record["pair"]["n_shared"]) == ("good", len(TOKENS))
    assert [model["n_padding"] for model in record["models"]] == list(counts)
    assert specx("run", "-m", str(verifier), "-md", str(drafter), "-p", "a", "-n", "4").stderr


def changed(token: int, name: str) -> tiny_gguf.Field:
    return strings([*TOKENS[:token], name, *TOKENS[token + 1 :]])


def test_a_differing_token_in_the_middle_is_named_and_the_pair_runs(
    tiny: Callable[..., Path], larger: Path
) -> None:
    token = TOKENS.index("m")
    drafter = tiny("d", tokenizer__ggml__tokens=changed(token, "mm\x1b"))
    record = pair(larger, drafter)
    assert record["verdict"] == "limits"
    (limit,) = record["limits"]
    assert f"id {token} is 'm' in the verifier and 'mm\\x1b' in the drafter" in limit
    assert "1 of 286" in limit
    assert record["pair"]["first_differing"] == [
        {"id": token, "verifier": "'m'", "drafter": "'mm\\x1b'"}
    ]
    done = specx("run", "-m", str(larger), "-md", str(drafter), "-p", "a", "-n", "4", "-q")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("specx: warning: 1 of 286 ids are other tokens")
    assert pair(larger, drafter, "--load")["limits"] == [limit]


def test_a_renamed_special_token_is_named(tiny: Callable[..., Path], larger: Path) -> None:
    drafter = tiny("d", tokenizer__ggml__tokens=changed(1, "<begin>"))
    (limit,) = pair(larger, drafter)["limits"]
    assert "id 1 is the control token '<s>' in the verifier" in limit
    assert "the control token '<begin>' in the drafter" in limit


def test_add_bos_that_differs(tiny: Callable[..., Path], larger: Path) -> None:
    drafter = tiny("d", tokenizer__ggml__add_bos_token=(False, Kind.BOOL))
    record = pair(larger, drafter)
    assert [model["bos"]["added"] for model in record["models"]] == [True, False]
    (limit,) = record["limits"]
    assert "the verifier has BOS before its texts and the drafter has not" in limit


def test_an_eos_that_differs(tiny: Callable[..., Path], larger: Path) -> None:
    (limit,) = pair(larger, tiny("d", tokenizer__ggml__eos_token_id=number(0)))["limits"]
    assert "EOS is id 2 '</s>' in the verifier and id 0 '<unk>' in the drafter" in limit


def test_a_drafter_with_a_shorter_context(tiny: Callable[..., Path], larger: Path) -> None:
    (limit,) = pair(larger, tiny("d", llama__context_length=number(128)))["limits"]
    assert limit.startswith("nothing is drafted beyond position 128")
    assert "512" in limit


def test_a_context_beyond_what_was_trained(larger: Path) -> None:
    (limit,) = alone(larger, "-c", 1024)["limits"]
    assert "the verifier was trained on 512 positions" in limit


def test_another_tokenizer_cannot_work(demo_verifier: Path, larger: Path) -> None:
    record = pair(larger, demo_verifier)
    (fault,) = record["faults"]
    assert fault.startswith("the drafter has another tokenizer")
    assert record["pair"]["fits"] is False
    assert not any("control token" in one["drafter"] for one in record["pair"]["first_differing"])


def test_a_drafter_that_is_no_smaller(larger: Path) -> None:
    (limit,) = pair(larger, larger)["limits"]
    assert "not smaller than the verifier" in limit


CHANGES: list[dict[str, tiny_gguf.Field]] = [
    {},
    {"tokenizer.ggml.tokens": changed(270, "qq")},
    {"tokenizer.ggml.tokens": strings([*TOKENS[:260], *(f"x{i}" for i in range(26))])},
    {"tokenizer.ggml.token_type": kinds([*KINDS[:280], *[UNUSED] * 6])},
    {"tokenizer.ggml.token_type": kinds([*KINDS[:260], *[CONTROL] * 26])},
]


@pytest.mark.parametrize("change", range(len(CHANGES)))
def test_the_verdict_is_what_loading_the_pair_says(
    tmp_path: Path, larger: Path, change: int
) -> None:
    drafter = tiny_gguf.write(tmp_path / "d.gguf", put=CHANGES[change])
    record = pair(larger, drafter)
    done = specx("run", "-m", str(larger), "-md", str(drafter), "-p", "a", "-n", "1", "-q")
    assert done.returncode == (2 if record["verdict"] == "cannot" else 0)
    assert ("other tokens" in done.stderr) == any("other tokens" in x for x in record["limits"])


# What is no language model


def only(architecture: str, kind: str) -> Callable[[Path], Path]:
    return lambda path: tiny_gguf.write(
        path, {"general.architecture": text(architecture), "general.type": text(kind)}
    )


def with_fields(tensors: Any = None, **put: tiny_gguf.Field | None) -> Callable[[Path], Path]:
    fields = {key.replace("__", "."): field for key, field in put.items()}
    return lambda path: tiny_gguf.write(path, tensors=tensors, put=fields)


OTHERS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "mmproj": (only("clip", "mmproj"), "the vision part of a model (mmproj)"),
    "clip": (only("clip", "model"), "the vision part of a model (mmproj)"),
    "adapter": (only("llama", "adapter"), "an adapter (LoRA)"),
    "imatrix": (only("", "imatrix"), "an importance matrix"),
    "embedder": (only("bert", "model"), "an embedding model"),
    "gemma-embedding": (only("gemma-embedding", "model"), "an embedding model"),
    "t5": (only("t5", "model"), "an encoder-decoder model"),
    "diffusion": (only("llada", "model"), "a diffusion model"),
    "shard": (with_fields(split__no=number(1)), "a later shard of a model"),
    "vocabulary": (with_fields(tensors={}), "a vocabulary without weights"),
    "head": (with_fields(tokenizer__ggml__model=text("no_vocab")), "has no tokenizer"),
    "lone": (with_fields(split__count=number(3)), "the first of 3 files of a model, and 2 of"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_a_file_is_when_it_is_no_language_model(
    tmp_path: Path, demo_drafter: Path, kind: str
) -> None:
    make, words = OTHERS[kind]
    path = make(tmp_path / "odd.gguf")
    for record in (alone(path), pair(demo_drafter, path)):
        (fault,) = record["faults"]
        assert words in fault
    assert [model["role"] for model in record["models"]] == ["verifier"]


def test_files_that_are_not_there_or_no_gguf(tmp_path: Path) -> None:
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"hello, world")
    for path, words in (
        (tmp_path / "missing.gguf", "no such file"),
        (junk, "is not a GGUF file"),
        (tmp_path, "is a directory"),
    ):
        (fault,) = alone(path)["faults"]
        assert words in fault


def test_an_embedding_model_that_looks_like_a_decoder(tiny: Callable[..., Path]) -> None:
    (limit,) = alone(tiny("e", llama__pooling_type=number(3)))["limits"]
    assert "trained to embed or rank texts (pooling type last)" in limit


def test_recurrent_layers_are_told(tmp_path: Path) -> None:
    tensors = tiny_gguf.llama_tensors()
    tensors["blk.0.ssm_in.weight"] = tensors["blk.0.attn_q.weight"]
    (limit,) = alone(tiny_gguf.write(tmp_path / "r.gguf", tensors=tensors))["limits"]
    assert "recurrent layers" in limit


def test_a_model_in_several_files_counts_whole(tmp_path: Path, demo_verifier: Path) -> None:
    first, *_ = odd_gguf.split(demo_verifier, tmp_path)
    whole, parts = alone(demo_verifier), alone(first)
    assert parts["verdict"] == "good"
    assert parts["models"][0]["n_params"] == whole["models"][0]["n_params"]
    assert parts["models"][0]["n_bytes"] > whole["models"][0]["n_bytes"] - 10_000


def test_no_file_ends_in_anything_but_a_verdict(tmp_path: Path, larger: Path) -> None:
    """Damaged headers, odd values and templates; and files that once failed, if they are here."""
    made = chain(
        FUZZERS["mutate"](tmp_path, random.Random(18), 40),
        FUZZERS["templates"](tmp_path, random.Random(18), 10),
    )
    paths = {Path(case.words[case.words.index("-m") + 1]) for case in made}
    paths |= set(try_cases.FILES.glob("*.gguf"))
    verdicts = {alone(path)["verdict"] for path in sorted(paths)}
    assert verdicts == {"good", "limits", "cannot"}
    for path in sorted(paths)[::5]:
        pair(path, larger)
        pair(larger, path)


# Templates


def templated(tiny: Callable[..., Path], template: str) -> dict[str, Any]:
    return alone(tiny("t", tokenizer__chat_template=text(template)))


@pytest.mark.parametrize(
    ("template", "system", "limit"),
    [
        (USER_ONLY, "taken", None),
        (
            "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}"
            "{% endif %}{{ m.content }}{% endfor %}",
            "merged",
            "takes no system message",
        ),
        (
            "{% if messages | length > 1 or messages[0].content | length > 40 %}"
            "{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}",
            "refused",
            "refuses a system message",
        ),
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.content | upper }}{% endfor %}",
            None,
            "leaves the user message out",
        ),
        ("{{ 'a' if", None, "chat template failed"),
        ("hello", None, "leaves the user message out"),
        (
            "{% for i in range(9999) %}{% for j in range(9999) %}{{ j }}{% endfor %}{% endfor %}",
            None,
            "more time or memory",
        ),
    ],
)
def test_the_template_is_rendered_once(
    tiny: Callable[..., Path], template: str, system: str | None, limit: str | None
) -> None:
    record = templated(tiny, template)
    found = record["models"][0]["template"]
    assert (found["problem"] is None) == (system is not None)
    assert found["system"] == (system or "refused")
    assert [limit in said for said in record["limits"]] == ([True] if limit else [])


def test_a_template_that_alters_the_text(tiny: Callable[..., Path]) -> None:
    template = "{% for m in messages %}{{ m.content | replace('river', 'brook') }}{% endfor %}"
    record = templated(tiny, template)
    assert record["models"][0]["template"]["altered"]
    assert any("alters the text" in limit for limit in record["limits"])


# Escapes

HOSTILE = "\x1b[2J\x9b31m\r\n\u202eevil\x07"


def test_texts_of_a_file_never_control_a_terminal(tiny: Callable[..., Path], larger: Path) -> None:
    template = f"{{{{ raise_exception({HOSTILE!r}) }}}}"
    odd = tiny(
        "odd",
        general__name=text(HOSTILE),
        tokenizer__ggml__pre=text(HOSTILE),
        tokenizer__ggml__tokens=strings([TOKENS[0], f"<{HOSTILE}>", *TOKENS[2:-1], HOSTILE]),
        tokenizer__chat_template=text(template),
    )
    for args in (("-m", odd), ("-m", odd, "-md", larger), ("-m", larger, "-md", odd)):
        for more in ((), ("--json",), ("-q",)):
            done = specx("check", *map(str, (*args, *more)))
            assert done.returncode == 0
            assert all(line.isprintable() for line in done.stdout.split("\n"))
            assert "evil" in done.stdout or more == ("-q",)


def test_errors_and_warnings_of_a_run_are_escaped_too(tiny: Callable[..., Path]) -> None:
    unknown = tiny("unknown", general__architecture=text(f"x{HOSTILE}"))
    raising = tiny("t", tokenizer__chat_template=text(f"{{{{ raise_exception({HOSTILE!r}) }}}}"))
    for path in (unknown, raising):
        done = specx("run", "-m", str(path), "-p", "a", "-n", "1")
        assert done.returncode == 2
        assert done.stderr.endswith("\n")
        assert done.stderr[:-1].isprintable()


# Memory


def inspected(path: Path, **options: Any) -> Inspection:
    backend: Any = get_backend("llamacpp")
    found: Inspection = backend.inspect(str(path), LoadOptions(**options))
    return found


def judged(found: Inspection, available: int, refusal: str | None = None) -> CheckRecord:
    def require_memory() -> None:
        if refusal is not None:
            raise ContextError(refusal)

    candidate = Candidate(role="verifier", backend="llamacpp", inspect=lambda: found)
    return check_models([candidate], "1", require_memory, available=available)


def test_a_cache_that_does_not_fit_cannot_work_unless_a_gpu_holds_it(larger: Path) -> None:
    found = inspected(larger)
    assert found.cache is not None
    size = found.cache.size(found.n_ctx)
    refused = judged(found, size - 1, "no room")
    assert (refused.verdict, refused.faults, refused.limits) == ("cannot", ["no room"], [])
    held = judged(found, size - 1)
    assert held.verdict == "limits"
    assert "unless a GPU holds them" in held.limits[0]


def test_weights_that_do_not_fit_are_told(larger: Path) -> None:
    found = inspected(larger)
    assert found.cache is not None
    size = found.weights + found.cache.size(found.n_ctx)
    assert judged(found, size).verdict == "good"
    mapped = judged(found, size - 1)
    assert "read from disk again and again" in mapped.limits[0]
    own = replace(found, mapped=False, cache=None)
    assert judged(own, own.weights).verdict == "good"
    assert "memory may run out" in judged(own, own.weights - 1).limits[0]


def test_a_file_that_is_both_models_counts_once(larger: Path) -> None:
    one, two = alone(larger)["memory"], pair(larger, larger)["memory"]
    assert two["weights"] == one["weights"]
    assert two["caches"] == 2 * one["caches"]


def test_windows_count_as_they_are_allocated(gemma: Path) -> None:
    """Their caches are allocated whole: a shorter one forgets what a rewind needs."""
    assert alone(gemma, "-c", 32768)["memory"]["caches"] == 576 * MIB


def test_the_command_asks_the_machine(larger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (report_module, sys.modules["specx.runtime.memory"]):
        monkeypatch.setattr(module, "available_memory", lambda: 1000)
    record = alone(larger)
    assert "KV cache" in record["faults"][0]
    assert record["memory"]["available"] == 1000


# Loading


def test_loading_adds_rollback_and_devices() -> None:
    _, record = check("--load")
    assert record["verdict"] == "good"
    assert [each["role"] for each in record["loaded"]] == ["verifier", "drafter"]
    assert {each["rollback"] for each in record["loaded"]} == {"native"}
    assert all(each["devices"] for each in record["loaded"])
    assert check()[1]["loaded"] is None


TOY = """vocabulary = ["<s>", ".", "a"]
bos = "<s>"
eog = ["."]
rollback = "{}"
[[row]]
next = {{ a = 1.0 }}
"""


@pytest.mark.parametrize(
    ("rollback", "verdict", "words"),
    [("checkpoint", "limits", "by checkpoints"), ("none", "cannot", "cannot forget tokens")],
)
def test_how_a_model_rewinds(tmp_path: Path, rollback: str, verdict: str, words: str) -> None:
    verifier, drafter = tmp_path / "v.toml", tmp_path / "d.toml"
    verifier.write_text(TOY.format("native") + "#" * 100)
    drafter.write_text(TOY.format(rollback))
    toys = "--backend", "toy", "-m", verifier, "-md", drafter
    assert check(*toys)[1]["verdict"] == "good"
    _, record = check(*toys, "--load")
    assert record["verdict"] == verdict
    assert words in [*record["faults"], *record["limits"]][0]
    lone = check("--backend", "toy", "-m", drafter, "--load")[1]
    assert [words in limit for limit in lone["limits"]] == [True]


def test_a_model_that_only_fails_when_it_is_loaded(tmp_path: Path, demo_verifier: Path) -> None:
    path = odd_gguf.rewrite(demo_verifier, tmp_path / "m.gguf", tensors=slice(0, -1))
    assert alone(path)["verdict"] == "good"
    _, record = check("-m", path, "--load")
    assert record["verdict"] == "cannot"
    assert "llama.cpp cannot load" in record["faults"][0]
    assert record["loaded"] is None


# The command


def test_the_report_for_people() -> None:
    done = specx("check")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "verifier  specx-demo-verifier.gguf"
    assert "pair" in lines
    assert "memory" in lines
    assert lines[-1] == "good"
    assert "\x1b" not in done.stdout
    assert specx("check", "-q").stdout == "good\n"


def test_limits_and_faults_for_people(larger: Path, demo_verifier: Path) -> None:
    limits = specx("check", "-q", "-m", str(larger), "-md", str(larger)).stdout.splitlines()
    assert limits[0] == "works with these limits:"
    assert limits[1].startswith("  - the drafter is not smaller")
    (line,) = specx("check", "-q", "-m", str(larger), "-md", str(demo_verifier)).stdout.splitlines()
    assert line.startswith("cannot work because the drafter has another tokenizer")


def test_a_backend_that_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(type(get_backend("toy")), "inspect")
    (fault,) = check("--backend", "toy", "-m", "v.toml")[1]["faults"]
    assert "backend 'toy' cannot tell" in fault


def test_the_schema_is_made_of_the_types() -> None:
    assert json.loads(check_schema.written()) == SCHEMA


PROBE = """
import sys
from specx.cli import exit_code_of
code = exit_code_of(["check", "-q", "-m", sys.argv[1], "-md", sys.argv[2]])
loaded = [name for name in ("llama_cpp", "torch", "transformers") if name in sys.modules]
print(code, loaded)
status = open("/proc/self/status").read()
print(status.split("VmHWM:")[1].split()[0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of one process is read from /proc")
def test_the_largest_vocabularies_take_little_memory_and_no_runtime(
    gemma: Path, qwen15: Path
) -> None:
    for verifier, drafter in ((gemma, gemma), (gemma, qwen15), (qwen15, gemma)):
        command = [sys.executable, "-c", PROBE, str(verifier), str(drafter)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        *_, told, peak = done.stdout.splitlines()
        assert told == ("0 []" if verifier == drafter else "1 []")
        assert int(peak) < 300 * 1024
