"""The report: a page that stands alone, with the run's own numbers, safe for any text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from inprocess import specx
from traces import NASTY, write_trace

from specx.cli.show import footer
from specx.codec import to_json
from specx.records.trace import Trace, read_trace, read_traces
from specx.report import INSTALL, figures, page, settings_of
from specx.session.decoding import Times


class Seen(HTMLParser):
    """What a browser would make of a page: its elements, and its tokens' text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tokens: list[str] = []
        self._inside = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if "data-at" in dict(attrs):
            self.tokens.append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.tokens[-1] += data


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("trace") / "<b>nasty.jsonl"
    return read_trace(write_trace(path, prompt=NASTY[0], n=120))


def test_text_with_html_is_shown_and_never_becomes_elements(nasty: Trace) -> None:
    seen = Seen(page([nasty]))
    scripts = [attributes for tag, attributes in seen.tags if tag == "script"]
    assert [s.get("type") for s in scripts] == ["application/json", None]
    assert not [tag for tag, _ in seen.tags if tag in ("img", "link", "iframe", "b")]
    assert not [a for _, attributes in seen.tags for a in attributes if a.startswith("on")]
    emitted = [token.piece for done in nasty.rounds for token in done.emitted]
    control = str.maketrans({"\x1b": "\u241b", "\x00": "\u2400"})
    assert seen.tokens == [piece.translate(control) for piece in emitted]
    assert set(emitted) == set(NASTY)


def test_nothing_is_fetched(nasty: Trace) -> None:
    html = page([nasty])
    for _, attributes in Seen(html).tags:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    assert "@import" not in html
    assert "default-src 'none'" in html
    assert not re.search(r"url\((?!#)", html)


def test_the_policy_allows_the_pages_own_script_alone(nasty: Trace) -> None:
    html = page([nasty])
    assert html.count("<script>") == 1
    script = html[html.rindex("<script>") + len("<script>") : html.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html


def test_ids_are_unique_over_several_traces(nasty: Trace) -> None:
    html = page([nasty, nasty, nasty])
    ids = [attributes["id"] for _, attributes in Seen(html).tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert html.count('class="trace"') == 3


def cells(html: str) -> dict[str, str]:
    pattern = r'<tr><th scope="row">([^<]*)</th><td>([^<]*)</td>'
    return dict(re.findall(pattern, html))


@pytest.mark.parametrize("draft", [True, False])
def test_page_and_footer_agree_to_the_last_digit(draft: bool, tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "a.jsonl", draft=draft))
    found = cells(page([trace]))
    lines = " ".join(footer(trace.result(), settings_of(trace)))
    number = r"([0-9.]+%?)"
    asked = {
        "tok/s": rf"tokens at {number} tok",
        "time": rf"time {number} s",
        "tokens": r"(\d+) tokens at",
    }
    asked |= {
        f"time, {part}": rf"{part} {number}" for part in ("verify", "core", "rollback", "other")
    }
    if draft:
        asked |= {name: rf"\b{name} {number}" for name in ("alpha", "kept", "tau", "accepted")}
        asked |= {f"expected, {rule}": rf"{rule} ([0-9]\.[0-9]+)" for rule in ("token", "match")}
        asked |= {"proposed": r"of (\d+) proposed", "tested": r"of (\d+) tested"}
    for name, pattern in asked.items():
        match = re.search(pattern, lines)
        assert match is not None, (name, lines)
        assert found[name].removesuffix(" s") == match[1], name


def test_run_and_report_print_the_same_footer(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    done = specx("run", "-p", "import os", "-n", "40", "-s", "2", "--trace", str(path))
    shown = specx("report", str(path))
    assert (done.returncode, shown.returncode) == (0, 0), done.stderr + shown.stderr
    printed = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(printed) >= 5
    assert [line for line in printed if line not in shown.stdout.splitlines()] == []


def test_a_dead_run_has_its_report(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.jsonl")
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b'{"kind": "summary"') - 40])
    trace = read_trace(path)
    assert trace.summary is None
    html = page([trace])
    assert "The run died" in html
    assert "the trace is incomplete" in " ".join(footer(trace.result(), settings_of(trace)))
    assert cells(html)["tokens"] == str(trace.tally().n_tokens)


def test_a_trace_without_rounds_has_its_report(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "a.jsonl", n=0))
    assert cells(page([trace]))["tokens"] == "0"


def test_without_the_extra_the_page_says_how_to_get_it(
    nasty: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specx.report.plots.find_spec", lambda name: None)
    html = page([nasty])
    assert "<svg" not in html
    assert INSTALL.replace("'", "&#39;") in html
    assert "Acceptance by position" in html  # the table is there


def test_plots_use_the_pages_colours(nasty: Trace) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'report'")
    html = page([nasty])
    assert html.count("<svg") == 4
    assert "var(--verify)" in html
    assert "#0102" not in html


def test_four_thousand_tokens_stay_small(tmp_path: Path) -> None:
    words = tuple(f" word{i}" for i in range(50))
    trace = read_trace(write_trace(tmp_path / "a.jsonl", words=words, n=4000))
    html = page([trace])
    assert len(Seen(html).tokens) == 4000
    assert len(html.encode()) < 3_000_000


def test_figures_name_every_number_once(nasty: Trace) -> None:
    names = [figure.name for figure in figures(nasty)]
    assert len(names) == len(set(names))


@pytest.fixture
def specx_report(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    return partial(specx, "report", cwd=tmp_path)


def test_the_command_writes_one_page(specx_report: Any, tmp_path: Path) -> None:
    files = [str(write_trace(tmp_path / name)) for name in ("a.jsonl", "b.jsonl")]
    done = specx_report(*files, "-o", "page.html")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count('class="trace"') == 2
    assert len(read_traces(Path(files[0]))) == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["none.jsonl"], "cannot read the trace from 'none.jsonl'"),
        (["a.jsonl", "-o", "missing/page.html"], "cannot write -o missing/page.html"),
    ],
)
def test_bad_input_gets_one_line(
    args: list[str], words: str, specx_report: Any, tmp_path: Path
) -> None:
    write_trace(tmp_path / "a.jsonl")
    done = specx_report(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_a_run_in_no_time_has_a_page_whose_data_is_json(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "t.jsonl", n=20))
    assert trace.summary is not None
    trace.summary.time["total"] = 0.0
    trace.rounds = [replace(done, times=Times()) for done in trace.rounds]
    html = page([trace])
    data = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.DOTALL)
    assert len(data) == 1
    json.loads(data[0], parse_constant=pytest.fail)
    json.loads(to_json(trace.result().figures()), parse_constant=pytest.fail)
    named = {figure.name: figure.value for figure in figures(trace)}
    assert (named["tok/s"], named["time, draft"]) == ("-", "-")
