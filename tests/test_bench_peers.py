"""The comparison with other programs: with fakes of them, and no model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peers import page
from peers.generate import Generate, Rounds
from peers.measuring import Plan, Steps, measure
from peers.prompt_lookup import PromptLookup, sampler_options
from peers.record import Record, read, take_up
from peers.sides import Peer, PeerFailed, Question, Side, Specx, Speed, question
from peers.speculative_simple import SpeculativeSimple, law, parse
from specx import Pair, SamplingParams
from specx.bench.suites import Prompt
from specx.errors import UsageError
from specx_backends.toy import Toy, ToyTable

SCRIPTS = Path(__file__).parent.parent / "scripts"
LAW = SamplingParams(temperature=0.7, top_p=0.9)
LOG = """
0.07.876.171 I encoded   11 tokens in    0.304 seconds, speed:   36.125 t/s
0.07.876.171 I decoded   10 tokens in    1.250 seconds, speed:    8.000 t/s
0.07.876.172 I n_draft   = 2
0.07.876.172 I n_predict = 10
0.07.876.172 I n_drafted = 8
0.07.876.172 I n_accept  = 6
"""
WORDS = ("<s>", "</s>", "a", "b")
ASK = Question("code-1", list(range(11)), "<|im_start|>user\nWrite.\\n\n")


# llama-speculative-simple


def program(tmp_path: Path, body: str) -> Path:
    """A program that is Python: `body`, after its arguments were kept."""
    path = tmp_path / "simple"
    kept = f"import json, sys\njson.dump(sys.argv[1:], open({str(tmp_path / 'words')!r}, 'w'))\n"
    path.write_text(f"#!{sys.executable}\n{kept}{body}")
    path.chmod(0o755)
    return path


def simple(path: Path) -> SpeculativeSimple:
    return SpeculativeSimple(path, ("v.gguf", "d.gguf"), LAW, threads=3, n_ctx=400)


needs_posix = pytest.mark.skipif(os.name == "nt", reason="the fake program begins with #!")


@needs_posix
def test_the_program_gets_the_same_law_prompt_and_threads(tmp_path: Path) -> None:
    path = program(tmp_path, f"sys.stdout.write('Hello'); sys.stderr.write({LOG!r})")
    speed = simple(path).run(ASK, gamma=2, seed=7, n=128)
    assert speed == Speed(tok_s=8.0, n_tokens=10, seconds=1.25, kept=0.75)
    words = json.loads((tmp_path / "words").read_text())
    options = dict(pairwise(words))
    wanted = {
        "-m": "v.gguf",
        "-md": "d.gguf",
        "-t": "3",
        "-td": "3",
        "-c": "400",
        "-s": "7",
        "-n": "127",
        "--spec-draft-n-max": "2",
        "--samplers": "temperature;top_p",
        "--temp": "0.7",
        "--top-p": "0.9",
        "--top-k": "0",
        "--min-p": "0",
        "-p": ASK.text,
    }
    assert {name: options[name] for name in wanted} == wanted
    assert "--no-escape" in words


@needs_posix
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.stderr.write('first\\nbad option\\n'); sys.exit(3)", "exit code 3: bad option"),
        ("sys.stderr.write('decoded nothing worth telling')", "no line like 'encoded"),
        (f"sys.stderr.write({LOG!r}.replace('encoded   11', 'encoded   12'))", "read 12 tokens"),
        (f"sys.stderr.write({LOG!r}.replace('1.250', '0.000'))", "decoded nothing"),
    ],
)
def test_what_the_program_cannot_do_is_told_in_a_line(
    tmp_path: Path, body: str, reason: str
) -> None:
    with pytest.raises(PeerFailed, match=reason):
        simple(program(tmp_path, body)).run(ASK, gamma=2, seed=7, n=128)


def test_a_missing_program_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match="cannot be started: No such file"):
        simple(tmp_path / "nowhere").run(ASK, gamma=2, seed=7, n=128)


def test_nothing_drafted_is_no_rate() -> None:
    speed, n_prompt = parse(LOG.replace("n_drafted = 8", "n_drafted = 0"))
    assert (speed.kept, n_prompt) == (None, 11)


def test_the_law_has_no_other_filter() -> None:
    assert law(SamplingParams(temperature=0, top_p=1))[2:4] == ["--temp", "0"]


# llama-cpp-python


class Clock:
    """Seconds that pass only when they are told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeLlama:
    """Writes the tokens 5, 6, 7, ... and then 1, which ends; two seconds each."""

    def __init__(self, clock: Clock, length: int) -> None:
        self.clock, self.length = clock, length
        self.calls: list[Any] = []

    def set_seed(self, seed: int) -> None:
        self.calls.append(("seed", seed))

    def reset(self) -> None:
        self.calls.append("reset")

    def generate(self, tokens: Sequence[int], **options: Any) -> Iterator[int]:
        self.calls.append((list(tokens), options))
        for token in [*range(5, 5 + self.length), 1]:
            self.clock.now += 2
            yield token


class Lookup:
    num_pred_tokens = 10


@pytest.mark.parametrize(("length", "n_tokens"), [(9, 5), (4, 3)])
def test_the_lookups_time_begins_after_the_prompt(length: int, n_tokens: int) -> None:
    clock, draft = Clock(), Lookup()
    llama = FakeLlama(clock, length)
    side = PromptLookup(llama, draft, {"temp": 1.0}, frozenset({1}), clock)
    speed = side.run(ASK, gamma=3, seed=7, n=6)
    assert speed == Speed(tok_s=0.5, n_tokens=n_tokens, seconds=2.0 * n_tokens)
    assert llama.calls == [("seed", 7), "reset", (ASK.ids, {"temp": 1.0})]
    assert draft.num_pred_tokens == 3


def test_a_lookup_that_writes_nothing_has_no_speed() -> None:
    clock = Clock()
    side = PromptLookup(FakeLlama(clock, 0), Lookup(), {}, frozenset({1}), clock)
    with pytest.raises(PeerFailed, match="wrote 0 tokens"):
        side.run(ASK, gamma=3, seed=7, n=6)


def test_the_lookups_chain_sees_tempered_logits() -> None:
    options = sampler_options(LAW, list)
    (processor,) = options["logits_processor"]
    logits = np.array([1.4, -0.7], np.float32)
    np.testing.assert_allclose(processor([], logits), [2, -1], rtol=1e-6)
    assert (options["temp"], options["top_p"], options["top_k"]) == (1.0, 0.9, 0)
    greedy = sampler_options(SamplingParams(temperature=0), list)
    assert (greedy["temp"], "logits_processor" in greedy) == (0.0, False)


# transformers


class Tokens:
    def __init__(self, size: int) -> None:
        self.size = size

    def numel(self) -> int:
        return self.size


def test_decoding_is_what_comes_after_the_round_that_holds_the_prompt() -> None:
    clock = Clock()
    rounds = Rounds(clock)
    for seconds, size in [(0, 11), (9, 3), (2, 4), (2, 1), (1, 2)]:
        clock.now += seconds
        rounds.put(Tokens(size))
    rounds.end()
    speed = rounds.speed(gamma=3)
    assert (speed.n_tokens, speed.seconds, speed.tok_s) == (7, 5, 1.4)
    assert (speed.kept, speed.alpha) == (5 / 9, 5 / 7)


def test_a_single_round_has_no_speed() -> None:
    rounds = Rounds(Clock())
    rounds.put(Tokens(11))
    rounds.put(Tokens(3))
    with pytest.raises(PeerFailed, match="within 1 rounds"):
        rounds.speed(gamma=3)


def test_generate_drafts_as_many_tokens_as_it_is_told() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    module = transformers.LlamaForCausalLM(config).eval()
    # Its own drafter: every draft is kept, so that each round after a prompt writes gamma + 1.
    for sampling in (LAW, SamplingParams(temperature=0)):
        speed = Generate(module, module, sampling, frozenset({63})).run(
            Question("q", [1, 2, 3], ""), gamma=3, seed=5, n=13
        )
        assert (speed.n_tokens, speed.kept, speed.alpha) == (9, 1.0, 1.0)


# specx


def toy(*weights: float) -> Toy:
    """A model that answers every context with the same weights of the four words."""
    probs = [weight / sum(weights) for weight in weights]
    return Toy(ToyTable(tokens=WORDS, rows={(): probs}))


VERIFIER, DRAFTER = (5, 4, 2, 1), (3, 5, 1, 2)


def test_specx_writes_the_same_tokens_with_a_verifier_alone_as_in_a_pair() -> None:
    alone, pair = toy(*VERIFIER), Pair(toy(*VERIFIER), toy(*DRAFTER))
    greedy = SamplingParams(temperature=0)
    speeds = [
        Specx(each, greedy, "block").run(Question("q", [0, 2], ""), gamma, 3, 12)
        for each, gamma in ((Pair(alone), 0), (pair, 2))
    ]
    assert speeds[0].n_tokens == speeds[1].n_tokens
    assert speeds[0].alpha is None
    assert speeds[1].alpha is not None


# The steps


class Scripted:
    """A side of known speed by gamma, a bit faster with each run."""

    def __init__(self, name: str, speeds: dict[int, float], log: list[Any]) -> None:
        self.name, self.speeds, self.log = name, speeds, log

    def run(self, prompt: Question, gamma: int, seed: int, n: int) -> Speed:
        self.log.append((self.name, prompt.id, gamma, seed, n))
        speed = self.speeds[gamma] * (1 + seed % 7 / 100)
        return Speed(tok_s=speed, n_tokens=n, seconds=n / speed)


class Broken:
    def run(self, prompt: Question, gamma: int, seed: int, n: int) -> Speed:
        raise RuntimeError("out of\nluck")


ASKS = [Question(name, [1], "") for name in ("factual-1", "code-1")]
SETTINGS: dict[str, Any] = {
    "verifier": "v.gguf",
    "drafter": "d.gguf",
    "prompts": ["factual-1", "code-1"],
    "n": 16,
    "temperature": 0.7,
    "top_p": 0.9,
    "gammas": [1, 2, 3],
    "rule": "block",
    "threads": 2,
}


def plan(log: list[Any], *, peer: Side | None = None, repetitions: int = 3) -> Plan:
    sides: dict[str, Side] = {
        page.PLAIN: Scripted(page.PLAIN, {0: 10.0}, log),
        page.PAIR: Scripted(page.PAIR, {1: 11.0, 2: 15.0, 3: 12.0}, log),
        page.SIMPLE: peer or Scripted(page.SIMPLE, {1: 12.0, 2: 11.0, 3: 9.0}, log),
    }
    return Plan(
        prompts=ASKS,
        sides=sides,
        plain=page.PLAIN,
        gammas=(1, 2, 3),
        repetitions=repetitions,
        n=16,
    )


def measured(record: Record, given: Plan) -> list[str]:
    said: list[str] = []
    measure(Steps(given, record), said.append, Clock())
    return said


def test_every_side_runs_at_its_best_gamma(tmp_path: Path) -> None:
    log: list[Any] = []
    record = take_up(tmp_path / "r.json", SETTINGS)
    measured(record, plan(log))
    paired = log[2 * 3 * 2 :]
    assert {(name, gamma) for name, _, gamma, _, _ in paired} == {
        (page.PLAIN, 0),
        (page.PAIR, 2),
        (page.SIMPLE, 1),
    }
    assert record.best_gamma("code-1", page.PAIR) == 2
    assert record.best_gamma("code-1", page.PLAIN) is None


def test_sides_take_turns_with_the_same_seeds(tmp_path: Path) -> None:
    log: list[Any] = []
    measured(take_up(tmp_path / "r.json", SETTINGS), plan(log))
    choices, paired = log[:12], log[12:]
    blocks = [paired[i : i + 3] for i in range(0, len(paired), 3)]
    assert len(blocks) == 6
    for block in blocks:
        assert len({(prompt, seed) for _, prompt, _, seed, _ in block}) == 1
    firsts = [block[0][0] for block in blocks]
    assert firsts == [page.PLAIN, page.PAIR, page.SIMPLE] * 2
    seeds = {block[0][3] for block in blocks}
    assert len(seeds) == 6
    assert not seeds & {seed for *_, seed, _ in choices}


def test_ratios_are_of_the_same_prompt_and_repetition(tmp_path: Path) -> None:
    record = take_up(tmp_path / "r.json", SETTINGS)
    measured(record, plan([]))
    ratios = record.ratios(page.PAIR, page.SIMPLE)
    assert list(ratios) == ["factual-1", "code-1"]
    # The seed's part of the speed goes out of the ratio only where both had the same seed.
    np.testing.assert_allclose([*ratios["factual-1"], *ratios["code-1"]], [1.25] * 6)
    assert len({round(s, 6) for each in record.speeds(page.PAIR).values() for s in each}) > 1


def test_a_second_call_measures_only_what_is_missing(tmp_path: Path) -> None:
    path, log = tmp_path / "r.json", list[Any]()
    first = Steps(plan(log), take_up(path, SETTINGS))
    for step in list(first)[:14]:
        step.measure()
    assert len(log) == 12 + 2 * 3
    again: list[Any] = []
    said = measured(take_up(path, SETTINGS), plan(again))
    assert len(said) == 4
    assert len(again) == 4 * 3
    whole: list[Any] = []
    other = take_up(tmp_path / "other.json", SETTINGS)
    measured(other, plan(whole))
    assert log + again == whole
    assert json.loads(path.read_text()) == json.loads((tmp_path / "other.json").read_text())


def test_more_repetitions_are_added(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    measured(take_up(path, SETTINGS), plan([], repetitions=1))
    log: list[Any] = []
    measured(take_up(path, SETTINGS), plan(log, repetitions=2))
    assert len(log) == 2 * 3
    assert {key: len(each) for key, each in read(path).speeds(page.PAIR).items()} == {
        "factual-1": 2,
        "code-1": 2,
    }


def test_each_step_says_what_is_left(tmp_path: Path) -> None:
    said = measured(take_up(tmp_path / "r.json", SETTINGS), plan([], repetitions=1))
    assert said[0].startswith("factual-1, specx pair, gamma 1: 11.")
    assert [line.split("; ")[1].split(" steps")[0] for line in said] == [
        str(left) for left in range(13, -1, -1)
    ]
    assert "minutes" not in said[-1]


def test_a_peer_that_fails_is_a_finding_and_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    record = take_up(path, SETTINGS)
    measured(record, plan([], peer=Peer(Broken)))
    assert read(path).data["failures"] == {page.SIMPLE: "RuntimeError: out of"}
    assert len(record.ratios(page.PAIR, page.PLAIN)["code-1"]) == 3
    assert record.ratios(page.PAIR, page.SIMPLE) == {}
    shown = page.tables_of("llamacpp", record)
    assert "Not measured here: RuntimeError: out of." in shown
    assert f"| {page.PAIR} | {page.SIMPLE} |  | - | - |" in shown

    log: list[Any] = []
    measured(take_up(path, SETTINGS), plan(log))
    assert read(path).data["failures"] == {}
    assert len(read(path).data["blocks"]) == 6
    assert len(log) == 2 * 3 + 6 * 3  # its own choices, and every block with all sides again
    assert len(read(path).ratios(page.PAIR, page.SIMPLE)["code-1"]) == 3


def test_a_failed_opening_is_a_finding() -> None:
    def missing() -> Side:
        raise ModuleNotFoundError("No module named 'llama_cpp'")

    with pytest.raises(PeerFailed, match="ModuleNotFoundError: No module named 'llama_cpp'"):
        Peer(missing).run(ASK, 1, 0, 4)


def test_other_settings_are_another_measurement(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    take_up(path, SETTINGS).save()
    with pytest.raises(UsageError, match="measured with n 16, not 32; give another file"):
        take_up(path, {**SETTINGS, "n": 32})


@pytest.mark.parametrize("text", ["[]", '{"specx_bench": 1}', "nothing"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="with -o"):
        take_up(path, SETTINGS)
    assert path.read_text() == text


def test_the_rules_are_expected_from_the_same_arrays(tmp_path: Path) -> None:
    record = take_up(tmp_path / "r.json", SETTINGS)
    pair = Specx(Pair(toy(*VERIFIER), toy(*DRAFTER)), LAW, "token")
    given = Plan(
        prompts=[Question("code-1", [0, 2], "")],
        sides={},
        plain=page.PLAIN,
        gammas=(1,),
        repetitions=0,
        n=16,
        acceptance=pair,
        acceptance_gammas=(2, 4),
        acceptance_n=200,
    )
    measured(record, given)
    assert [entry["gamma"] for entry in record.data["acceptance"]] == [2, 4]
    for entry in record.data["acceptance"]:
        expected = entry["expected"]
        assert (entry["rule"], entry["temperature"]) == ("token", 1.0)
        assert expected["block"] >= expected["token"] >= expected["match"] > 0
    seed = given.seed_of("acceptance", given.prompts[0])
    tally = pair.decode(given.prompts[0], 2, seed, 200, 1.0)
    assert record.data["acceptance"][0]["expected"] == tally.expected_a_round()
    assert list(Steps(given, record)) == []
    lines = page.rules_of([("llamacpp", record)]).splitlines()
    assert lines[2].startswith("| llama.cpp | code-1, 1 | 2 |")


# The tables


def test_the_table_has_the_median_over_prompts_and_each_prompts_range() -> None:
    speeds = {"a": [(12, 10), (14, 10), (11, 10)], "b": [(20, 10)], "c": [(15, 10)]}
    blocks = [
        {
            "prompt": prompt,
            "repetition": repetition,
            "runs": {page.PAIR: {"tok_s": ours}, page.SIMPLE: {"tok_s": theirs}},
        }
        for prompt, pairs in speeds.items()
        for repetition, (ours, theirs) in enumerate(pairs)
    ]
    data = {"settings": {"prompts": ["a", "b", "c"]}, "blocks": blocks}
    row = page.ratio_row(Record(data), page.PAIR, page.SIMPLE)
    assert row[2] == "1.50x (range 1.20 to 2.00)"
    assert row[3:] == ["1.20 (1.10 to 1.40)", "2.00 (2.00 to 2.00)", "1.50 (1.50 to 1.50)"]


def test_tables_of_a_page_hold_every_group_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "RECORDS", tmp_path)
    assert page.peers_table() == ""
    measured(take_up(page.file_of("llamacpp"), SETTINGS), plan([]))
    shown = page.peers_table()
    assert f"| {page.PAIR} | {page.SIMPLE} | 1.25x (range 1.25 to 1.25) |" in shown
    assert f"| {page.PAIR} | 2, 2 |" in shown
    assert "v.gguf with d.gguf, temperature 0.7, top-p 0.9, at most 16 tokens" in shown
    assert "generate(assistant_model)" not in shown


# The command


def command(*words: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(SCRIPTS / "bench_peers.py"), *words]
    return subprocess.run(script, capture_output=True, text=True)


def test_a_record_is_shown_without_models(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    measured(take_up(path, SETTINGS), plan([]))
    done = command("--group", "llamacpp", "--show", "-o", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "1.25x" in done.stdout


def test_a_missing_model_is_one_line(tmp_path: Path) -> None:
    words = ["-m", str(tmp_path / "no.gguf"), "-md", "no.gguf", "-o", str(tmp_path / "r.json")]
    done = command("--group", "llamacpp", *words)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("bench_peers: cannot read model")


class Templated:
    """A tokenizer with a BOS: letters are their code points."""

    bos_id, eos_id = 1, 2
    chat_template = "{{ bos_token }}[{{ messages[0]['content'] }}]"

    def token_text(self, token: int) -> str:
        return {1: "<s>", 2: "</s>"}[token]

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        begins = parse_special and text.startswith("<s>")
        rest = [ord(letter) for letter in (text.removeprefix("<s>") if begins else text)]
        return [1] * (add_special + begins) + rest


def test_a_program_that_adds_bos_gets_a_text_without_it() -> None:
    asked = question(Templated(), Prompt("own-1", "own", "hi"))  # type: ignore[arg-type]
    assert asked == Question("own-1", [1, *map(ord, "[hi]")], "[hi]")
