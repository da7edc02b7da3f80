"""Records of any content: read and usable, or refused in one line that names file and field."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specx import RULES
from specx.bench import read_results, results_record, summarise, warnings_of
from specx.bench.explain import explain
from specx.bench.render import FORMATS as BENCH_FORMATS
from specx.bench.suites import read_prompts
from specx.cli import main
from specx.cli.report import _print as print_traces
from specx.cli.tables import print_comparison, print_results
from specx.codec import MOST_GAMMA, to_json
from specx.compare import read_comparison
from specx.compare.render import as_markdown
from specx.drafters.base import Outlook
from specx.errors import UsageError
from specx.output import OutputFile
from specx.records.trace import read_traces, replayed_acceptance
from specx.report import page
from specx.runtime.machine import Watch
from specx.schedule import Costs, Replay, read_steps
from specx.schedule.costs.curve import profile_record, read_profile
from studies.analysis import analyse
from studies.observations import observe
from studies.render import FORMATS as STUDY_FORMATS

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks"

TABLE = """
vocabulary = ["<s>", "</s>", "one", " two", " three", " four"]
bos = "<s>"
eog = ["</s>"]
[cost]
forward = [0.5, 0.6, 0.7]
[[row]]
next = { one = 0.2, " two" = 0.3, " three" = 0.48, "</s>" = 0.02 }
[[row]]
after = [" two"]
next = { " three" = 0.6, " four" = 0.4 }
"""
PROMPTS = ('{"id": "a", "kind": "k|1", "prompt": "one"}', '{"prompt": "one two", "more": [1]}')


# What was written stays readable


@pytest.mark.parametrize(
    "path",
    [
        p
        for p in sorted(DOCS.glob("*.json"))
        if not p.name.startswith(("auto", "busy", "parts", "peers", "server"))
    ],
)
def test_every_committed_record_is_read(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if path.name.startswith("compare"):
        assert as_markdown(read_comparison(path))
    elif path.name.startswith("curve"):
        assert explain(read_profile(path))
    else:
        use_results(path)
    capsys.readouterr()


@pytest.mark.parametrize("path", sorted(DOCS.glob("compare*.json")))
def test_a_comparison_of_before_there_were_ranges_is_read(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    old = re.sub(r', "(speedup_)?interval": ("range"|null)', "", text)
    assert old != text
    (tmp_path / "old.json").write_text(old)
    assert "| 95% interval |" in as_markdown(read_comparison(tmp_path / "old.json"))
    assert "| range |" in as_markdown(read_comparison(path))


# What is read is used


def use_traces(path: Path) -> None:
    traces = read_traces(path)
    for trace in traces:
        trace.text, trace.tally(), trace.choices()
        for done in trace.rounds:
            replayed_acceptance(done, RULES.get(trace.header.rule, RULES["token"]))
    OutputFile(path.with_suffix(".html")).write(page(traces))
    print_traces(traces)
    try:
        seen, naive = observe(traces), observe(traces, tested_only=False)
    except UsageError:
        return
    record = analyse(seen, naive=naive, resamples=5)
    for form in STUDY_FORMATS.values():
        OutputFile(path.with_suffix(".out")).write(form(record, seen))


def use_results(path: Path) -> None:
    results = read_results(path)
    results.warnings = [*results.warnings, *warnings_of(results, Watch())]
    record = results_record(results, summarise(results))
    print_results(record)
    print_comparison({"a": record, "b": record})
    for form in BENCH_FORMATS.values():
        form(record)
    json.loads(to_json(record), parse_constant=pytest.fail)


def use_profile(path: Path) -> None:
    profile = read_profile(path)
    costs = Costs(profile, "profile", live=True)
    costs.learn_verify(1, 0.1)
    assert len(costs.rounds(free=False)) == len(costs.rounds(free=True))
    explain(profile)
    json.loads(to_json(profile_record(profile)), parse_constant=pytest.fail)


@dataclass
class Reader:
    """A drafter that a replay may restart."""

    kind: str

    def restart(self, at: int) -> None:
        assert at >= 0

    def outlook(self, tokens: Sequence[int]) -> Outlook:
        return Outlook(limit=MOST_GAMMA)


def use_steps(path: Path) -> None:
    steps = read_steps(path)
    drafters: Any = [Reader("model"), Reader("lookup")]
    for step in steps:
        try:
            plan = Replay([step]).plan(Long(step.length), drafters, 4)
        except UsageError:  # another drafter's name
            continue
        assert plan.limit <= MOST_GAMMA


class Long(Sequence[int]):
    """A text of any length."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, at: Any) -> Any:
        raise AssertionError


def use_prompts(path: Path) -> None:
    for prompt in read_prompts(path):
        assert all(part.strip() for part in (prompt.id, prompt.kind, prompt.text))


USES: dict[str, Callable[[Path], None]] = {
    "run.jsonl": use_traces,
    "sweep.jsonl": use_traces,
    "bench.json": use_results,
    "profile.json": use_profile,
    "gammas.jsonl": use_steps,
    "prompts.jsonl": use_prompts,
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of each kind."""
    folder = tmp_path_factory.mktemp("sound")
    (folder / "v.toml").write_text(TABLE)
    (folder / "d.toml").write_text(
        TABLE.replace("0.2,", "0.4,").replace("0.48", "0.28").replace("[0.5, 0.6, 0.7]", "[0.05]")
    )
    (folder / "prompts.jsonl").write_text("\n".join(PROMPTS))
    pair = ["--backend", "toy", "-m", folder / "v.toml", "-md", folder / "d.toml"]
    sweep = ["--gamma", "2", "--rule", "token", "-n", "8", "-f", folder / "prompts.jsonl"]
    command("bench", *pair, *sweep, "-o", folder / "bench.json", "--trace", folder / "sweep.jsonl")
    prompts = ["-f", folder / "prompts.jsonl"]
    command("bench", *pair, *prompts, "--curve", "--widths", "1-4", "-o", folder / "profile.json")
    run = ["run", *pair, "-p", "one", "-n", "40", "-s", "1", "--rule", "token"]
    auto = ["--gamma", "auto", "--profile", folder / "profile.json"]
    command(*run, *auto, "--gamma-trace", folder / "gammas.jsonl", "--trace", folder / "run.jsonl")
    return folder


def command(*args: object) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*map(str, args), "-q"])
    assert exit_.value.code == 0


@pytest.mark.parametrize("name", USES)
def test_a_sound_record_is_of_use(
    name: str, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes((sound / name).read_bytes())
    USES[name](tmp_path / name)
    capsys.readouterr()


# Damage

DEEP = "@deep@"
ODD: tuple[Any, ...] = (
    None, True, False, "x", "", "\udc80\u2028\x1b[31m", -1, 0, 1, 2**31, 2**53, 2**70, 10**30, -0.5,
    0.5, 5e-324, 1e308, -1e308, float("nan"), float("inf"), [], [[]], {}, {"x": 1}, [None], DEEP,
)  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container within `value`, with a key of it."""
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield value, key
        yield from places(value[key])


def damaged_value(text: str, rng: random.Random) -> str:
    """JSON with one value of it changed, dropped or added."""
    value = json.loads(text)
    held, key = rng.choice(list(places(value)))
    way = rng.randrange(12)
    if way == 0:
        del held[key]
    elif way == 1 and isinstance(held, dict):
        held["unheard of"] = rng.choice(ODD)
    elif way == 2 and isinstance(held, list):
        held.append(held[key])
    elif way == 3 and isinstance(held[key], int | float):
        held[key] = held[key] * rng.choice([-1, 0, 2, 1000, 1e9]) + rng.choice([0, 1])
    else:
        held[key] = rng.choice(ODD)
    return json.dumps(value).replace(f'"{DEEP}"', "[" * 10_000 + "]" * 10_000)


def damaged(data: bytes, lines: bool, rng: random.Random) -> bytes:
    way = rng.randrange(10)
    if way == 0:
        return data[: rng.randrange(len(data))]
    if way == 1:
        at = rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if not lines:
        return damaged_value(data.decode(), rng).encode()
    parts = data.decode().removesuffix("\n").split("\n")
    at = rng.randrange(len(parts))
    if way == 2:
        del parts[at]
    else:
        parts[at] = damaged_value(parts[at], rng)
    return "\n".join(parts).encode() + b"\n"


COUNTS = {"run.jsonl": 40, "sweep.jsonl": 25, "bench.json": 120, "profile.json": 100,
          "gammas.jsonl": 100, "prompts.jsonl": 100}  # fmt: skip


@pytest.mark.parametrize("name", USES)
def test_a_damaged_record_is_of_use_or_refused_in_a_line_that_names_it(
    name: str, sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("specx.report.plots.find_spec", lambda name: None)  # plots take a second
    whole, path, rng = (sound / name).read_bytes(), tmp_path / name, random.Random(15)
    refusals = []
    for _ in range(COUNTS[name]):
        path.write_bytes(damaged(whole, name.endswith("jsonl"), rng))
        try:
            USES[name](path)
        except UsageError as error:
            refusals.append(str(error))
    assert COUNTS[name] // 4 < len(refusals) < COUNTS[name] - 3
    for refusal in refusals:
        assert str(path) in refusal
        assert refusal.isprintable()
        assert len(refusal) < len(str(path)) + 300
    capsys.readouterr()


def test_json_controls_no_terminal() -> None:
    """Templates, names of models and prompts come from anywhere."""
    odd = "\x1b[2J\x9b31m\u202eevil\u2069 caf\u00e9 \U0001f600"
    text = to_json({"name": odd})
    assert json.loads(text) == {"name": odd}
    assert text.isprintable()
    assert "caf\u00e9 \U0001f600" in text
