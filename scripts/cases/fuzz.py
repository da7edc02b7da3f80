"""Fresh odd inputs from a seed: mutated model files, templates, records and options."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
from gguf import GGUFValueType

from cases.odd_gguf import ARRAY, BOOL, F32, STRING, U32, rewrite, tiny_llama
from cases.rows import CONTENT, TOY_PAIR, of_file, run
from cases.running import Case, try_case

__all__ = ["FUZZERS"]

NUMBERS = (0, 1, 2, 3, 7, 31, 64, 127, 255, 513, 65_536, 2**31 - 1, 2**31, 2**32 - 1)
FLOATS = (float("nan"), float("inf"), -1.0, 0.0, 1e-38, 1e38)
WORDS = ("", "\0", "a\0b", "llama", "bert", "gpt2", "t5", "none", "default", "yarn", "\u2581" * 9,
         "x" * 5000)  # fmt: skip
MORE_KEYS = ("general.alignment", "llama.expert_count", "llama.expert_used_count",
             "llama.rope.scaling.type", "llama.rope.freq_base", "llama.vocab_size",
             "llama.attention.sliding_window", "llama.attention.key_length",
             "tokenizer.ggml.pre", "tokenizer.ggml.add_bos_token",
             "tokenizer.ggml.padding_token_id", "split.count")  # fmt: skip


def model_files(folder: Path, rng: random.Random, count: int) -> Iterator[Case]:
    """A tiny model with bytes, keys or a list of tokens changed."""
    sound = tiny_llama(folder / "sound.gguf")
    for number in range(count):
        change = rng.choice((bytes_changed, keys_changed, keys_changed, tokens_changed))
        path = folder / f"model-{number:04d}.gguf"
        what = change(sound, path, rng)
        yield Case(change.__name__, what, run("-m", path, "-p", "Hi"))
        yield Case(change.__name__, f"{what}, check", ("check", "-m", str(path)), codes=(0, 1))


def bytes_changed(sound: Path, path: Path, rng: random.Random) -> str:
    """Some bytes, most of them before the tensors; or the file is cut or longer."""
    data = bytearray(sound.read_bytes())
    how = rng.randrange(8)
    if how == 0:
        data = data[: rng.randrange(len(data))]
    elif how == 1:
        data += rng.randbytes(rng.randrange(1, 9999))
    else:
        end = rng.choice((32, 9000, 9000, len(data)))
        places = [rng.randrange(end) for _ in range(rng.choice((1, 1, 2, 8, 64)))]
        for place in places:
            data[place] = rng.choice((0, 1, 255, data[place] ^ (1 << rng.randrange(8))))
    path.write_bytes(data)
    return ("cut", "longer", *["bytes"] * 6)[how]


def keys_changed(sound: Path, path: Path, rng: random.Random) -> str:
    """A key has another value, or another type, or is gone."""
    reader = gguf.GGUFReader(sound)
    keys = [key for key in reader.fields if not key.startswith(("GGUF.", "general.arch"))]
    key = rng.choice((*keys, *MORE_KEYS))
    if key in keys and rng.randrange(5) == 0:
        rewrite(sound, path, drop=(key,))
        return f"{key} dropped"
    kind = reader.fields[key].types[0] if key in keys else None
    value = new_value(kind, rng)
    rewrite(sound, path, {key: value})
    return f"{key} = {value[0]!r:.30}"


def new_value(kind: GGUFValueType | None, rng: random.Random) -> tuple[Any, ...]:
    """A value of the key's own type, more often than not."""
    if kind is None or rng.randrange(4) == 0:
        kind = rng.choice((U32, F32, STRING, BOOL, ARRAY))
    if kind == STRING:
        return rng.choice(WORDS), STRING
    if kind == F32:
        return rng.choice(FLOATS), F32
    if kind == BOOL:
        return rng.random() < 0.5, BOOL
    if kind == ARRAY:
        return [rng.choice(NUMBERS[:10]) for _ in range(rng.choice((1, 3, 286)))], ARRAY, U32
    return rng.choice(NUMBERS), U32


def tokens_changed(sound: Path, path: Path, rng: random.Random) -> str:
    """Tokens that are empty, equal, hold a NUL, or are of another kind; fewer or more of them."""
    reader = gguf.GGUFReader(sound)
    tokens, kinds = (
        list(reader.fields[f"tokenizer.ggml.{name}"].contents())
        for name in ("tokens", "token_type")
    )
    what = rng.choice(("empty", "equal", "nul", "kind", "fewer", "more", "all kinds", "no bytes"))
    for place in [rng.randrange(len(tokens)) for _ in range(rng.choice((1, 2, 9)))]:
        if what in ("empty", "equal", "nul"):
            tokens[place] = {"empty": "", "equal": tokens[-1], "nul": "a\0b"}[what]
        elif what == "kind":
            kinds[place] = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 99))
    if what == "fewer":
        tokens = tokens[: rng.randrange(1, len(tokens))]
    elif what == "more":
        tokens += [f"more{i}" for i in range(rng.choice((1, 99)))]
    elif what == "all kinds":
        kinds = [rng.choice((1, 2, 3, 6))] * len(kinds)
    elif what == "no bytes":
        tokens = [f"t{i}" if kind == 6 else token
                  for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))]  # fmt: skip
    put = {
        "tokenizer.ggml.tokens": (tokens, ARRAY, STRING),
        "tokenizer.ggml.token_type": (kinds, ARRAY, GGUFValueType.INT32),
    }
    rewrite(sound, path, put)
    return f"tokens: {what}"


PIECES = (
    "{{ messages }}", "{{ messages[0] }}", "{{ messages[0].content }}", "{{ bos_token }}",
    "{{ nothing }}", "{{ nothing.at.all }}", "{{ 10 ** 10 ** 10 }}", "{{ 'x' * 10 ** 10 }}",
    "{{ [0] * 10 ** 10 }}", "{{ range(10 ** 10) | list }}", "{{ range(10 ** 9) | sum }}",
    "{{ ('x' * 99999).replace('x', 'y' * 99999) }}", "{{ 'x'.join(['y' * 99999] * 99999) }}",
    "{{ 'x' | center(10 ** 10) }}", "{{ '%*d' % (10 ** 10, 1) }}", "{{ '{:9999999}'.format(1) }}",
    "{{ messages | tojson(indent=10 ** 9) }}", "{{ lipsum(n=10 ** 6) }}", "{{ namespace(a=1) }}",
    "{% set x = 'x' * 9999 %}", "{% for a in x %}", "{% for a in range(9999) %}", "{% endfor %}",
    "{% if messages %}", "{% else %}", "{% endif %}", "{% macro f(a) %}", "{% endmacro %}",
    "{{ f(1) }}", "{% call f(1) %}", "{% endcall %}", "{% filter upper %}", "{% endfilter %}",
    "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% block b %}",
    "{% endblock %}", "{% raw %}", "{% endraw %}", "{% generation %}", "{% endgeneration %}",
    "{% break %}", "{% continue %}", "{% do x.append(1) %}", "{{ raise_exception('no') }}",
    "{{ strftime_now('%Y') }}", "{{ ''.__class__.mro() }}", "{{ self }}", "{{ loop }}", "{# ",
    " #}", "{{", "}}", "{%-", "-%}", "\0", "\u2028", "\r\n", "<s>", "</s>", "(" * 99, "[" * 99,
    "{{ messages | map('upper') | list }}", "{{ messages | groupby('role') }}",
    "{{ messages | tojson | fromjson }}", "{{ 'x' | regex_replace('(x+)+y', '') }}",
)  # fmt: skip


def chat_templates(folder: Path, rng: random.Random, count: int) -> Iterator[Case]:
    """Pieces of templates in any order, or a sound template with characters changed."""
    sound = tiny_llama(folder / "sound.gguf")
    for number in range(count):
        if rng.random() < 0.7:
            text = "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 9)))
        else:
            letters = list(CONTENT)
            for _ in range(rng.randrange(1, 5)):
                letters[rng.randrange(len(letters))] = rng.choice("{}%#|.'\"([0 \n\\x")
            text = "".join(letters)
        path = folder / f"template-{number:04d}.gguf"
        rewrite(sound, path, {"tokenizer.chat_template": (text, STRING)})
        yield Case("template", f"{text!r:.40}", run("-m", path, "-p", "Hi"))


ODD_NUMBERS = (-1, 0, 1e308, float("inf"), float("nan"), 2**70)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, "", "x" * 99, [], {}, [None], {"a": {}}, [[[[]]]]),
    *ODD_NUMBERS,
)


def records(folder: Path, rng: random.Random, count: int) -> Iterator[Case]:
    """A benchmark's and a trace's record with a value changed or gone, or a line cut."""
    bench, trace = folder / "sound.json", folder / "sound.jsonl"
    suite = folder / "suite.jsonl"
    suite.write_text('{"prompt": "a"}\n')
    words = ("bench", *TOY_PAIR, "-md", TOY_PAIR[3].replace("verifier", "drafter"), "-f",
             str(suite), "-n", "4", "-r", "2", "--gamma", "2", "--rule", "token")  # fmt: skip
    made = try_case(Case("", "", (*words, "-o", str(bench), "--trace", str(trace))))
    if made.code:
        raise SystemExit(f"no sound record to start from: {made.line}")
    for number in range(count):
        source = rng.choice((bench, trace))
        lines = source.read_text().splitlines() if source is trace else [source.read_text()]
        place = rng.randrange(len(lines))
        if rng.random() < 0.1:
            lines[place] = lines[place][: rng.randrange(len(lines[place]))]
        else:
            lines[place] = json.dumps(value_changed(json.loads(lines[place]), rng))
        name = "jf_trace" if source is trace else "jf_bench"
        path = folder / f"{name}_{number:04d}{source.suffix}"
        path.write_text("\n".join(lines) + "\n")
        for case in of_file(path):
            yield Case(f"record, {case.words[0]}", path.name, case.words)


def value_changed(record: Any, rng: random.Random) -> Any:
    """The record with another value at one place of it."""
    place: Any = record
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        if not keys:
            return record
        key = rng.choice(keys)
        inner = place[key]
        if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.3:
            break
        place = inner
    if rng.random() < 0.2:
        del place[key]
    else:
        place[key] = rng.choice(ODD_VALUES)
    return record


OPTIONS = ("-n", "--gamma", "--temp", "--top-k", "--top-p", "--min-p", "-s", "--stop", "--draft",
           "--draft-temp", "--draft-top-k", "--draft-top-p", "--entropy-stop", "--draft-p-min",
           "-ngl", "-t", "-c", "-cd", "-b", "-bd", "-ctk", "-ctv", "--dtype", "--device", "--rule",
           "--show", "--color", "-sys", "-p", "-md", "--backend", "--draft-backend")  # fmt: skip
FLAGS = ("--raw", "--ignore-eos", "--no-draft", "--no-cache", "--json", "--no-stream", "-q", "-v")
VALUES = ("0", "1", "2", "-1", "3", "0.5", "1e999", "nan", "-inf", "1_0", "\u00b2", "\u0663", " 1 ",
          "auto", "lookup", "model", "model,lookup", "", " ", "f16", "q8_0", "q4_0", "cpu", "toy",
          "hf", "block", "off", "x" * 3000, "9" * 25, "4294967297", "100000", "\u2192",
          "--json", "-")  # fmt: skip


def option_sets(_: Path, rng: random.Random, count: int) -> Iterator[Case]:
    """Options of `specx run` with values of each other."""
    for _number in range(count):
        words = ["run", "-p", "Hi", "-n", "3"]
        for option in rng.sample(OPTIONS, rng.randrange(1, 4)):
            words += [option, rng.choice(VALUES)]
        words += rng.sample(FLAGS, rng.randrange(3))
        yield Case("options", " ".join(word[:12] for word in words[5:]), tuple(words))


Fuzzer = Callable[[Path, random.Random, int], Iterator[Case]]
FUZZERS: dict[str, Fuzzer] = {
    "mutate": model_files,
    "templates": chat_templates,
    "records": records,
    "options": option_sets,
}
