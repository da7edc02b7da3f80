"""The page in a real browser: opens from a file, fetches nothing, tells of every token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browsing import Opened, barriers
from test_bench_render import arm, record
from traces import write_trace

from specx.records.trace import BenchSummary, Trace, read_trace
from specx.report import page


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read_trace(write_trace(tmp_path_factory.mktemp("trace") / "a.jsonl", n=120))


@pytest.fixture(scope="module")
def file(trace: Trace) -> Path:
    """Two traces side by side, the first as if from a sweep."""
    path = trace.path.with_suffix(".html")
    path.write_text(page([replace(trace, bench=swept()), trace]), encoding="utf-8")
    return path


def swept() -> BenchSummary:
    whole = record(*(arm(gamma) for gamma in (2, 4, 8)))
    arms: list[Any] = [{**each, "predicted": each["speedup"] and 2.5} for each in whole["arms"]]
    return BenchSummary(
        n=30, planned=2, complete=True, arms=arms, profiles={}, warnings=whole["warnings"]
    )


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Opened]:
    found = Opened(browser, file.as_uri())
    yield found
    found.page.close()


def test_it_fetches_nothing_and_complains_of_nothing(opened: Opened, file: Path) -> None:
    for token in opened.page.locator("#t1 .text .t").all()[:30]:
        token.dispatch_event("click")
    for box in ("input[value=entropy]", "#rejected"):
        opened.page.locator(box).check()
    assert opened.requests == [file.as_uri()]
    assert opened.complaints == []


def test_a_clicked_token_tells_its_probabilities(opened: Opened, trace: Trace) -> None:
    rounds = [done for done in trace.rounds if done.n_accepted and done.last.origin == "correction"]
    done = rounds[0]
    drafted, lost = done.draft[0], done.draft[done.n_accepted]
    panel = opened.page.locator("#t1 .panel")
    opened.page.locator(f'#t1 [data-at="{done.index}.0"]').dispatch_event("click")
    told = panel.inner_text()
    for value in (drafted.target_prob, drafted.draft_prob, drafted.uniform, drafted.overlap):
        assert f"{float(f'{value:.4g}'):g}" in told
    assert drafted.target is not None
    assert f"{drafted.target.raw_entropy:.4g}" in told
    opened.page.locator(f'#t1 [data-at="{done.index}.{done.n_accepted}"]').dispatch_event("click")
    told = panel.inner_text()
    assert "Correction" in told
    for value in (lost.uniform, lost.chance, done.last.target_prob, done.last.uniform):
        assert f"{float(f'{value:.4g}'):g}" in told


def test_the_other_traces_panel_stays_as_it_was(opened: Opened) -> None:
    opened.page.locator("#t1 .text .t").first.dispatch_event("click")
    assert "Choose a token" in opened.page.locator("#t2 .panel").inner_text()


def test_arrow_keys_walk_from_token_to_token(opened: Opened) -> None:
    opened.page.locator("#t1 .text .t").first.focus()
    for _ in range(3):
        opened.page.keyboard.press("ArrowRight")
    opened.page.keyboard.press("ArrowLeft")
    at = opened.page.evaluate("document.activeElement.dataset.at")
    third = opened.page.locator("#t1 .text .t").nth(2).get_attribute("data-at")
    assert at == third
    assert opened.page.locator("#t1 .text .t[tabindex='0']").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_no_serious_barrier_and_no_sideways_scrolling(
    scheme: str, width: int, browser: Any, file: Path
) -> None:
    opened = Opened(
        browser,
        file.as_uri(),
        color_scheme=scheme,
        viewport={"width": width, "height": 850},
        bypass_csp=True,
    )
    opened.page.locator("#t1 .text .correction").first.dispatch_event("click")
    for mark in ("origin", "entropy"):
        opened.page.locator(f"input[value={mark}]").check()
        assert barriers(opened.page) == []
    wide = opened.page.evaluate("document.documentElement.scrollWidth")
    opened.page.close()
    assert wide <= width


def test_four_thousand_tokens_open_at_once(browser: Any, tmp_path: Path) -> None:
    words = tuple(f" word{i}" for i in range(50))
    trace = read_trace(write_trace(tmp_path / "a.jsonl", words=words, n=4000))
    (tmp_path / "a.html").write_text(page([trace]), encoding="utf-8")
    opened = Opened(browser, (tmp_path / "a.html").as_uri())
    entry = "performance.getEntriesByType('navigation')[0].domComplete"
    print(f"\nopened in {opened.page.evaluate(entry):.0f} ms")
    assert opened.page.locator(".text .t").count() == 4000
    assert opened.complaints == []
    opened.page.close()
