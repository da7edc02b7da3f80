"""The rows: inputs that once failed, one of a kind each, made in a folder from the demo pair."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

from cases.odd_gguf import (
    ARRAY,
    STRING,
    U32,
    Keys,
    only_keys,
    rewrite,
    split,
    tiny_gpt2,
    tiny_llama,
    tokens_of,
    without_tokenizer,
)
from cases.running import Case, Outcome, try_case

__all__ = ["cases", "of_file"]

Check: TypeAlias = "Callable[[Outcome], str | None]"

ROOT = Path(__file__).resolve().parents[2]
VERIFIER = ROOT / "models" / "demo" / "specx-demo-verifier.gguf"
DRAFTER = ROOT / "models" / "demo" / "specx-demo-drafter.gguf"
TOYS = ROOT / "models" / "toy"
SHORT = ("-n", "3", "-s", "1")
CONTENT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
TOY_PAIR = ("--backend", "toy", "-m", str(TOYS / "verifier.toml"))
ARROWS = """vocabulary = ["<s>", ".", "\u2192", "\U0001f600"]
bos = "<s>"
eog = ["."]

[[row]]
next = { "\u2192" = 0.5, "\U0001f600" = 0.5 }
"""


def cases(folder: Path) -> Iterator[Case]:
    """Every row; its files lie in `folder`."""
    for rows in (templates, prompts, models, streams, specials, outputs, records, options):
        yield from rows(folder / rows.__name__)


def run(*words: object) -> tuple[str, ...]:
    """`specx run` with a short text."""
    return ("run", *(str(word) for word in words), *SHORT)


def of_file(path: Path) -> list[Case]:
    """The runs that try a file of a folder of inputs, chosen by its name."""
    name = str(path)
    if path.suffix == ".gguf":
        return [
            Case("file", path.name, run("-m", path, "-p", "Hi")),
            Case("file", f"{path.name}, check", ("check", "-m", name), codes=(0, 1)),
        ]
    readers: dict[str, list[tuple[str, ...]]] = {
        "jf_bench": [("bench", "--load", name)],
        "jf_trace": [("report", name)],
    }
    every: list[tuple[str, ...]] = [
        ("bench", "--load", name),
        ("report", name),
        run("-p", "Hi", "--gamma-replay", name),
        run("-p", "Hi", "--profile", name),
    ]
    kind = "_".join(path.name.split("_")[:2])
    return [Case("file", f"{path.name}, {w[0]}", w) for w in readers.get(kind, every)]


# Checks


def n_prompt(outcome: Outcome) -> int:
    """Tokens of the prompt, from ``--json``."""
    return int(json.loads(outcome.stdout)["settings"]["n_prompt"])


def at_least(count: int) -> Check:
    """The prompt has arrived: it has so many tokens (or was refused)."""

    def check(outcome: Outcome) -> str | None:
        if outcome.code != 0 or n_prompt(outcome) >= count:
            return None
        return f"the prompt has {n_prompt(outcome)} tokens, not {count} or more"

    return check


def as_tokens_of(other: Case) -> Check:
    """The prompt has as many tokens as that of another run."""

    def check(outcome: Outcome) -> str | None:
        reference = try_case(other)
        if reference.code or outcome.code:
            return f"exit code {reference.code or outcome.code}: {(reference or outcome).line}"
        counts = n_prompt(outcome), n_prompt(reference)
        return None if counts[0] == counts[1] else f"{counts[0]} tokens, not {counts[1]}"

    return check


def says(*words: str, not_words: tuple[str, ...] = ()) -> Check:
    """Standard error holds one of `words`, and none of `not_words`."""

    def check(outcome: Outcome) -> str | None:
        text = outcome.stderr.lower()
        if words and not any(word in text for word in words):
            return f"says none of: {', '.join(words)}"
        found = [word for word in not_words if word in text]
        return f"says {found[0]!r}" if found else None

    return check


def prints(text: str) -> Check:
    """Standard output holds it, in UTF-8."""

    def check(outcome: Outcome) -> str | None:
        return None if text.encode() in outcome.stdout else f"standard output lacks {text!r}"

    return check


# Chat templates and prompts

TEMPLATES: dict[str, str] = {
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "endless loop": "{% for i in range(9999) %}{% for j in range(9999) %}"
    "{% for k in range(9999) %}" + "{% endfor %}" * 3,
    "power": "{{ 9**9**9 }}",
    "long product": "{{ 'a' * 9999999999 }}",
    "wide format": "{{ '%9999999999d' % 1 }}",
    "wide center": "{{ 'a'.center(9999999999) }}",
    "wide indent": "{{ messages | tojson(indent=999999999) }}",
    "deep nesting": "{% if 1 %}" * 500 + "x" + "{% endif %}" * 500,
    "deep brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "asynchronous": "{% async for m in messages %}{% endfor %}",
    "broken": "{% for",
    "undefined": "{{ nothing.at.all }}",
    "attribute": "{{ ''.__class__.__mro__ }}",
    "surrogate": "{{ '\\ud800' }}",
}


def with_template(folder: Path, name: str, template: str) -> Path:
    """The demo verifier with a template."""
    put: Keys = {"tokenizer.chat_template": (template, STRING)}
    return rewrite(VERIFIER, folder / f"{name.replace(' ', '-')}.gguf", put)


def templates(folder: Path) -> Iterator[Case]:
    """Rows 1 to 10."""
    folder.mkdir()
    made = partial(with_template, folder)
    for name, template in TEMPLATES.items():
        yield Case("templates", name, run("-m", made(name, template), "-p", "Hi"))

    parts = (
        "{% for m in messages %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endfor %}"
    )
    long = "one two three four five six seven eight nine ten"
    yield Case("1", "content as a list of parts",
               (*run("-m", made("parts", parts), "-p", long), "--json"),
               check=at_least(10))  # fmt: skip
    dialect = {
        "generation": "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}"
        "{% endfor %}",
        "tojson": "{{ messages | tojson(ensure_ascii=False, indent=2) }}",
        "date": "{{ strftime_now('%Y') }}" + CONTENT,
        "loop control": "{% for m in messages %}{{ m['content'] }}{% break %}{% endfor %}",
    }
    for name, template in dialect.items():
        yield Case("2", name, run("-m", made(name, template), "-p", "Hi"), codes=(0,))
    for backend in ("llamacpp", "hf"):
        yield Case("3", f"an empty template, {backend}",
                   (*run("-m", made("empty", ""), "-p", long, "--backend", backend), "--json"),
                   codes=(0,), check=at_least(10))  # fmt: skip
    raising = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    )
    yield Case("4", "a template without system messages",
               run("-m", made("raising", raising + CONTENT), "-p", "Hi", "-sys", "Be brief"),
               check=says(not_words=("--raw",)))  # fmt: skip
    ignoring = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    yield Case("5", "a template that passes over system messages",
               run("-m", made("ignoring", ignoring), "-p", "Hi", "-sys", "Be brief"),
               check=says("system"))  # fmt: skip
    plain = tiny_llama(folder / "plain.gguf", {"tokenizer.chat_template": (CONTENT, STRING)})
    yield Case("8", "a control token in the user's text",
               (*run("-m", plain, "-p", "a</s>b</s>c</s>d"), "--json"), codes=(0,),
               check=at_least(17))  # fmt: skip
    thinking = made("thinking", "{% if enable_thinking %}" + "x " * 20 + "{% endif %}" + CONTENT)
    yield Case("10", "an argument of a template",
               run("-m", thinking, "-p", "Hi", "--template-arg", "enable_thinking=true"),
               codes=(0,))  # fmt: skip


def prompts(folder: Path) -> Iterator[Case]:
    """Row 9: one text, the same tokens by every way."""
    folder.mkdir()
    texts = {
        "byte order mark": b"\xef\xbb\xbfa = 1",
        "final newline": b"a = 1\n",
        "CRLF": b"a = 1\r\nb = 2",
    }
    plain = {"byte order mark": b"a = 1", "final newline": b"a = 1", "CRLF": b"a = 1\nb = 2"}
    for name, text in texts.items():
        path = folder / f"{name.replace(' ', '-')}.txt"
        path.write_bytes(text)
        reference = Case("9", name, (*run("-p", plain[name].decode(), "--raw"), "--json"))
        for way, words, stdin in (
            ("-f", ("-f", str(path)), b""),
            ("standard input", (), text),
        ):
            yield Case("9", f"{name}, {way}", (*run(*words, "--raw"), "--json"), stdin,
                       check=as_tokens_of(reference))  # fmt: skip
    latin = folder / "latin.txt"
    latin.write_bytes(b"caf\xe9 = 1")
    yield Case("9", "latin-1, -f", run("-f", latin))
    yield Case("9", "latin-1, standard input", run(), b"caf\xe9 = 1")


# Model files


def models(folder: Path) -> Iterator[Case]:
    """Rows 20 to 27 and 81, 82."""
    folder.mkdir()
    hi = ("-p", "Hi")
    tokens = tokens_of(VERIFIER)
    twice: Keys = {"tokenizer.ggml.tokens": ([*tokens[:-1], tokens[-2]], ARRAY, STRING)}
    yield Case("20", "two equal tokens",
               run("-m", rewrite(VERIFIER, folder / "duplicate.gguf", twice), *hi))  # fmt: skip
    bare = without_tokenizer(DRAFTER, folder / "bare.gguf")
    yield Case("21", "no tokenizer", run("-m", bare, *hi), codes=(2,), check=says("tokenizer"))
    yield Case("21", "a drafter without a tokenizer", run("-m", VERIFIER, "-md", bare, *hi),
               codes=(2,), check=says("tokenizer"))  # fmt: skip
    first, second, _ = split(VERIFIER, folder)
    yield Case("22", "the first of several files, llama.cpp", run("-m", first, *hi))
    yield Case("22", "the first of several files, hf", run("-m", first, *hi, "--backend", "hf"))
    lone = shutil.copy(first, folder / "lone-00001-of-00003.gguf")
    yield Case("22", "a file whose others are missing", run("-m", lone, *hi), codes=(2,))
    yield Case("22", "the same, hf", run("-m", lone, *hi, "--backend", "hf"), codes=(2,))
    yield Case("26", "the second of several files", run("-m", second, *hi), codes=(2,),
               check=says(not_words=("damaged",)))  # fmt: skip
    letters = folder / "letters.txt"
    letters.write_text("x" * 100_000)
    for pre in ("gpt-4o", "tekken", "qwen35", "deepseek-v3"):
        put: Keys = {"tokenizer.ggml.pre": (pre, STRING)}
        path = rewrite(VERIFIER, folder / f"{pre}.gguf", put)
        yield Case("23", f"100,000 letters, {pre}", run("-m", path, "-f", letters))
    gpt2 = tiny_gpt2(folder / "gpt2.gguf")
    for backend in ("llamacpp", "hf"):
        yield Case("24", f"beyond the learnt positions, {backend}",
                   ("run", "-m", str(gpt2), "-p", "a", "-c", "256", "-n", "200", "--ignore-eos",
                    "--backend", backend))  # fmt: skip
    named: Keys = {"tokenizer.ggml.tokens": (["<|end|>", *tokens_of(DRAFTER)[1:]], ARRAY, STRING)}
    renamed = rewrite(DRAFTER, folder / "renamed.gguf", named)
    yield Case("25", "a control token of another name", run("-m", VERIFIER, "-md", renamed, *hi),
               codes=(0,))  # fmt: skip
    for arch, kind in (("clip", "mmproj"), ("llama", "adapter")):
        path = only_keys(VERIFIER, folder / f"{kind}.gguf", arch, kind)
        yield Case("26", kind, run("-m", path, *hi), codes=(2,),
                   check=says(not_words=("damaged",)))  # fmt: skip
    latin = folder / "latin.gguf"
    latin.write_bytes(VERIFIER.read_bytes().replace(b"demonstrate", b"d\xe9monstrate"[:11]))
    yield Case("27", "a latin-1 byte in a description", run("-m", latin, *hi), codes=(0,))
    key: Keys = {"k" * 60_000: ("v", STRING)}
    yield Case("81", "a key of 60,000 characters",
               run("-m", rewrite(VERIFIER, folder / "key.gguf", key), *hi), codes=(0,))  # fmt: skip
    blocks: Keys = {"llama.block_count": (0, U32)}
    lacking = {
        "a tensor missing": rewrite(VERIFIER, folder / "missing.gguf", tensors=slice(0, -1)),
        "no tensors": rewrite(VERIFIER, folder / "none.gguf", tensors=slice(0)),
        "no blocks": rewrite(VERIFIER, folder / "blocks.gguf", blocks),
    }
    for name, path in lacking.items():
        for backend in ("llamacpp", "hf"):
            yield Case("82", f"{name}, {backend}", run("-m", path, *hi, "--backend", backend),
                       codes=(2,))  # fmt: skip
    junk = folder / "junk.gguf"
    junk.write_bytes(os.urandom(100_000))
    yield Case("models", "no GGUF file", run("-m", junk, *hi), codes=(2,))
    cut = folder / "cut.gguf"
    cut.write_bytes(VERIFIER.read_bytes()[:-100_000])
    yield Case("models", "a file cut short", run("-m", cut, *hi), codes=(2,))


# Streams


def streams(folder: Path) -> Iterator[Case]:
    """Rows 40 and 43."""
    folder.mkdir()
    toy = folder / "arrows.toml"
    toy.write_text(ARROWS, encoding="utf-8")
    decode = ("run", "--backend", "toy", "-m", str(toy), "-p", "", "-n", "6", "-s", "1")
    for name, environ in (
        ("cp1252", {"PYTHONIOENCODING": "cp1252"}),
        ("C locale", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    ):
        for words in ((), ("--json",), ("--no-stream",)):
            yield Case("40", " ".join((name, *words)), (*decode, *words), environ=environ,
                       codes=(0,))  # fmt: skip
    odd = os.fsdecode(os.fsencode(folder) + b"/caf\xe9.gguf")
    shutil.copy(VERIFIER, odd)
    yield Case("40", "a file name that is no UTF-8, --json",
               (*run("-m", odd, "-p", "Hi"), "--json"), codes=(0,))  # fmt: skip
    yield Case("43", "standard output closed", run("-p", "Hi"), closed_stdout=True)
    yield Case("43", "standard output closed, --version", ("--version",), closed_stdout=True)
    yield Case("43", "standard input closed", run(), None)
    # Python itself ends there, before specx has a say.
    yield Case("43", "standard input a directory", run(), folder, codes=(1, 2),
               check=says("directory"))  # fmt: skip
    yield Case("43", "TERM unset", run("-p", "Hi"), environ={"TERM": None}, codes=(0,))
    yield Case("43", "standard output full", run("-p", "Hi"), stdout=Path("/dev/full"))


def specials(folder: Path) -> Iterator[Case]:
    """Row 44: paths that are not regular files, for every option that names a file."""
    folder.mkdir()
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    takers: dict[str, Callable[[str], tuple[str, ...]]] = {
        "prompt": lambda path: run("-f", path),
        "model": lambda path: run("-m", path, "-p", "Hi"),
        "drafter": lambda path: run("-m", VERIFIER, "-md", path, "-p", "Hi"),
        "profile": lambda path: run("-p", "Hi", "--profile", path),
        "replay": lambda path: run("-p", "Hi", "--gamma-replay", path),
        "suite": lambda path: ("bench", *TOY_PAIR, "-f", path, "-n", "4", "-r", "1"),
        "bench file": lambda path: ("bench", "--load", path),
        "trace": lambda path: ("report", path),
    }
    for name, words in takers.items():
        for path in (Path("/dev/zero"), Path("/dev/full"), pipe, folder):
            yield Case(
                "44",
                f"{'a folder' if path == folder else path} as {name}",
                words(str(path)),
                codes=(2,),
            )
    for option in ("--trace", "--gamma-trace"):
        yield Case("80", f"{option} on a full device", run("-p", "Hi", option, "/dev/full"),
                   codes=(2,))  # fmt: skip
    yield Case("80", "--trace beyond the limit of a file's size",
               ("run", "-p", "Hi", "-n", "200", "-q", "--ignore-eos",
                "--trace", str(folder / "t.jsonl")), codes=(2,), file_limit=4096)  # fmt: skip


# Outputs that are inputs


def outputs(folder: Path) -> Iterator[Case]:
    """Rows 50 to 52; each finds all files sound."""
    for number, case in enumerate(_outputs(folder)):
        if number == 0:
            folder.mkdir()
        _lay_out(folder)
        yield case


def _lay_out(folder: Path) -> None:
    """A pair under several names, a prompt, a suite, a trace, and two unrelated files."""
    for path in folder.iterdir():
        path.unlink()
    shutil.copy(VERIFIER, folder / "model.gguf")
    shutil.copy(DRAFTER, folder / "drafter.gguf")
    os.link(folder / "model.gguf", folder / "hard.gguf")
    (folder / "link.gguf").symlink_to(folder / "model.gguf")
    (folder / "prompt.txt").write_text("def f(")
    (folder / "suite.jsonl").write_text('{"prompt": "a"}\n')
    (folder / "notes.txt").write_text("my notes\n")
    (folder / "picture.json").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    trace = folder / "trace.jsonl"
    try_case(Case("", "", ("run", *TOY_PAIR, "-p", "a", "-n", "3",
                           "--trace", str(trace))))  # fmt: skip


def _outputs(folder: Path) -> Iterator[Case]:
    model, drafter = folder / "model.gguf", folder / "drafter.gguf"
    pair = run("-m", model, "-md", drafter, "-p", "Hi")
    spelled = folder / ".." / folder.name / "model.gguf"
    names = (model, drafter, folder / "hard.gguf", folder / "link.gguf", spelled)
    for option in ("--trace", "--gamma-trace"):
        for path in names:
            shown = "another spelling" if path == spelled else path.name
            yield Case("50", f"{option} is a model: {shown}", (*pair, option, str(path)),
                       codes=(2,), keeps=(model, drafter))  # fmt: skip
    bench = ("bench", *TOY_PAIR, "-f", str(folder / "suite.jsonl"), "-n", "4", "-r", "1")
    taken: list[tuple[str, str, tuple[str, ...], str]] = [
        ("51", "prompt.txt", run("-f", folder / "prompt.txt"), "--trace"),
        ("51", "suite.jsonl", bench, "-o"),
        ("51", "suite.jsonl", bench, "--trace"),
        ("51", "model.gguf", ("bench", "--curve", "-m", str(model)), "-o"),
        ("51", "trace.jsonl", ("report", str(folder / "trace.jsonl")), "-o"),
        ("52", "notes.txt", run("-p", "Hi"), "--trace"),
        ("52", "picture.json", bench, "-o"),
    ]
    for row, name, words, option in taken:
        path = folder / name
        yield Case(row, f"{words[0]} {option} is {name}", (*words, option, str(path)),
                   codes=(2,), keeps=(path,))  # fmt: skip
    yield Case("52", "a trace over an older trace",
               run("-p", "Hi", "--trace", folder / "trace.jsonl"), codes=(0,))  # fmt: skip


# Records and options


def records(folder: Path) -> Iterator[Case]:
    """Row 83, and values of wrong types."""
    folder.mkdir()
    texts = {
        "deep": "[" * 60_000,
        "deep-objects": '{"a":' * 60_000,
        "infinite": '{"specx_bench": 1, "n": Infinity}',
        "null": "null",
        "list": "[]",
        "number": "1e999",
        "empty": "",
    }
    for name, text in texts.items():
        path = folder / f"{name}.json"
        path.write_text(text)
        for case in of_file(path):
            yield Case("83", case.what, case.words)


def options(folder: Path) -> Iterator[Case]:
    """Rows 60, 61 and 85."""
    folder.mkdir()
    values = {
        "--gamma": ("\u00b2", "9" * 5000, "-1", "4294967296"),
        "-t": ("100000", "9" * 20),
        "-b": ("4294967297",),
        "-c": ("4294967297", "9" * 20),
        "-n": ("9" * 20,),
        "-s": ("9" * 30,),
        "--temp": ("nan", "inf", "1e999"),
        "--top-p": ("nan", "-1"),
        "-ngl": ("9" * 20,),
        "-ctk": ("f64", ""),
    }
    rows = {"-t": "61", "-b": "85"}
    for option, texts in values.items():
        for text in texts:
            words = ("run", "-p", "Hi", "-n", "3", option, text)
            yield Case(rows.get(option, "60"), f"{option} {text[:12]}", words,
                       codes=(2,) if option in rows else (0, 2))  # fmt: skip
    suite = folder / "suite.jsonl"
    suite.write_text('{"prompt": "a"}\n')
    yield Case("60", "bench --gamma 4294967296",
               ("bench", *TOY_PAIR, "-f", str(suite), "-n", "4", "-r", "1", "--gamma",
                "4294967296"))  # fmt: skip
