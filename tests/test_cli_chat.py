"""Chat templates from the command line: what was given reaches the prompt, or one line says why."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from chat_models import with_template
from inprocess import specx

EACH = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
SAMPLE = (
    "vocabulary = ['<s>', '</s>', 'no', 'be', ' ', '[', ']', 'hi', '2', '0', '4', '1', '3', '5', "
    "'6', '7', '8', '9', \"\\n\"]\n"
    "bos = '<s>'\neog = ['</s>']\nchat_template = '''{template}'''\n"
    "[[row]]\nnext = {{ hi = 1.0 }}\n"
)


@pytest.fixture
def table(tmp_path: Path) -> Any:
    def write(template: str) -> Path:
        path = tmp_path / "table.toml"
        path.write_text(SAMPLE.format(template=template))
        return path

    return write


def run(model: Path, *args: str, backend: str = "toy") -> subprocess.CompletedProcess[str]:
    return specx("run", "--backend", backend, "-m", str(model), "-n", "2", *args)


def result(model: Path, *args: str, backend: str = "toy") -> dict[str, Any]:
    done = run(model, "--json", *args, backend=backend)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def complaint(model: Path, *args: str, backend: str = "toy") -> str:
    done = run(model, *args, backend=backend)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_an_argument_changes_the_prompt_and_is_in_the_settings(table: Any) -> None:
    model = table(EACH + "{% if think is defined and not think %}no{% endif %}")
    plain, told = (
        result(model, "-p", "hi"),
        result(model, "-p", "hi", "--template-arg", "think=false"),
    )
    assert (plain["settings"]["n_prompt"], told["settings"]["n_prompt"]) == (4, 5)
    assert plain["settings"]["template_args"] == {}
    assert told["settings"]["template_args"] == {"think": False}
    assert "template_date" not in told["settings"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--template-arg", "thinking=1"], "no variable 'thinking'; it has: think"),
        (["--template-arg", "think=off"], "off is not JSON; a string needs double quotes"),
        (["--template-arg", "think"], "--template-arg think is not NAME=JSON"),
        (["--template-arg", "think=1", "--raw"], "--raw disables; leave one out"),
        (["--template-date", "2024-07-26", "--raw"], "--raw disables; leave one out"),
        (["--template-date", "26.7.2024"], "does not match the format"),
        (["-sys", "be", "--raw"], "-sys needs a chat template, which --raw disables"),
    ],
)
def test_what_cannot_be_used_is_one_line(table: Any, args: list[str], words: str) -> None:
    model = table(EACH + "{% if think %}no{% endif %}")
    assert words in complaint(model, "-p", "hi", *args)


def test_an_argument_without_a_template_is_refused(table: Any) -> None:
    assert "which the model lacks" in complaint(table(""), "-p", "hi", "--template-arg", "a=1")
    dated = ("--template-date", "2024-07-26")
    assert "--template-date needs a chat template" in complaint(table(""), "-p", "hi", *dated)


def test_the_date_is_pinned_and_recorded_where_the_template_asks_for_it(table: Any) -> None:
    model = table("{{ strftime_now('%Y') }}" + EACH)
    old = result(model, "-p", "hi", "--template-date", "2014-07-26")
    assert old["settings"]["template_date"] == "2014-07-26"
    now = result(model, "-p", "hi")
    again = result(model, "-p", "hi", "--template-date", now["settings"]["template_date"])
    assert again["settings"]["template_date"] == now["settings"]["template_date"]


def test_an_empty_template_is_none(table: Any) -> None:
    found = result(table(""), "-p", "hi")
    assert (found["settings"]["template"], found["settings"]["n_prompt"]) == ("none", 2)


def test_a_system_message_without_a_place_is_told_once(table: Any) -> None:
    template = '{% if messages[0].role == "system" %}{{ raise_exception(1) }}{% endif %}' + EACH
    done = run(table(template), "-p", "hi", "-sys", "be")
    assert done.returncode == 0
    assert done.stderr.count("accepts no system message; it was put before") == 1


def test_a_raw_text_that_begins_with_bos_has_one(table: Any) -> None:
    model = table(EACH)
    lengths = [
        result(model, "-p", prompt, "--raw")["settings"]["n_prompt"] for prompt in ("hi", "<s>hi")
    ]
    assert lengths == [2, 2]


# Over a GGUF file, on llama.cpp


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'aaaa'|replace('', 'b' * 100000000) }}",
        "{{ 10**(10**8) }}",
        "{{ 'a'.center(5000000000) }}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% if 1 %}" * 200 + "x" + "{% endif %}" * 200,
        "no message",
    ],
)
def test_a_hostile_template_of_a_file_is_one_line(
    demo_verifier: Path, tmp_path: Path, template: str
) -> None:
    model = with_template(demo_verifier, tmp_path / "model.gguf", template)
    line = complaint(model, "-p", "Hi", backend="llamacpp")
    assert "the model's chat template" in line
    assert "pass --raw to do without it" in line
    assert run(model, "-p", "Hi", "--raw", backend="llamacpp").returncode == 0


def test_a_control_token_in_a_prompt_is_text_unless_raw(
    demo_verifier: Path, tmp_path: Path
) -> None:
    model = with_template(demo_verifier, tmp_path / "model.gguf", EACH)
    n_prompt = [
        result(model, "-p", prompt, *raw, backend="llamacpp")["settings"]["n_prompt"]
        for prompt in ("ab", "a<|endoftext|>b")
        for raw in ([], ["--raw"])
    ]
    assert n_prompt[2] > n_prompt[0] + 2
    assert n_prompt[3] <= n_prompt[1] + 2


def test_parts_are_given_where_a_file_wants_them(demo_verifier: Path, tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endfor %}"
    )
    model = with_template(demo_verifier, tmp_path / "model.gguf", template)
    short, long = (
        result(model, "-p", prompt, backend="llamacpp")["settings"]["n_prompt"]
        for prompt in ("x", "x = [1, 2, 3]")
    )
    assert short < long


@pytest.mark.parametrize("command", ["bench", "bench --curve", "compare"])
def test_other_commands_take_the_templates_options_too(
    table: Any, tmp_path: Path, command: str
) -> None:
    model = table(EACH + "{% if think %}no{% endif %}")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "kind": "chat", "prompt": "hi"}\n')
    for given, words in (
        (["--template-arg", "thinking=1"], "no variable 'thinking'; it has: think"),
        (["--template-date", "2024-07-26", "--raw"], "--raw disables; leave one out"),
    ):
        args = ["--backend", "toy", "-q", "-m", str(model), "-md", str(model), "-f", str(prompts)]
        args += ["--against-backend", "toy"] if command == "compare" else []
        done = specx(*command.split(), *args, *given, cwd=tmp_path)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_a_benchs_resume_knows_the_templates_options(table: Any, tmp_path: Path) -> None:
    model = table(EACH + "{% if think %}no{% endif %}")
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text('{"id": "a", "kind": "chat", "prompt": "hi"}\n')
    command = ["bench", "--backend", "toy", "-m", str(model), "-q", "-f", str(prompts)]
    command += ["-o", str(out), "-n", "2", "-r", "1", "--template-arg"]
    codes = [
        specx(*command, *more).returncode
        for more in (["think=1"], ["think=1", "--resume"], ["think=2", "--resume"])
    ]
    assert codes == [0, 0, 2]
