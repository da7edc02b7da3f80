"""The server's page in a real browser: a chat, its tokens, its errors, and what it must not do."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from browsing import Opened, barriers
from serving import Running, events, serving

CHAT = "/v1/chat/completions"
PATHS = {"/", "/v1/models", CHAT}
PROMPT = "def add(a, b):"
SEEDED = {"seed": 3, "max_tokens": 60, "temperature": 1}
WATCH = """() => {
  window.seen = [];
  new MutationObserver(() => {
    const answer = document.querySelector(".writing");
    if (answer) seen.push({
      tokens: answer.querySelectorAll(".t").length,
      stop: !document.getElementById("stop").hidden,
      figures: answer.querySelector(".figures").textContent,
    });
  }).observe(document.getElementById("log"), { childList: true, subtree: true });
}"""
"""Keeps what a reader sees while an answer is written: the demo pair is too fast to look later."""
STOP_AT_TEN = """() => new MutationObserver(() => {
  const ten = document.querySelectorAll(".writing .t").length >= 10;
  if (ten) document.getElementById("stop").click();
}).observe(document.getElementById("log"), { childList: true, subtree: true })"""
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)> <b>bold</b> &amp;"


@pytest.fixture(scope="module")
def server(chat_pair: list[str]) -> Iterator[Running]:
    with serving(*chat_pair) as running:
        yield running


@pytest.fixture(scope="module")
def address(server: Running) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def chat(browser: Any, address: str) -> Iterator[Chat]:
    found = Chat(browser, address)
    yield found
    found.assert_quiet()
    found.page.close()


class Chat(Opened):
    """The page, and what a reader does with it."""

    def __init__(self, browser: Any, address: str, **context: Any) -> None:
        super().__init__(browser, address, **context)
        self.address = address
        self.sent: list[Any] = []
        """Bodies of the requests for an answer."""
        self.page.on("request", self._keep)
        self.error = self.page.locator("#error")
        self.composer = self.page.locator("#message")
        self.tokens = self.page.locator(".assistant .t")
        self.panel = self.page.locator("#panel")

    def _keep(self, request: Any) -> None:
        if request.url.endswith(CHAT):
            self.sent.append(request.post_data_json)

    def set(self, **values: Any) -> None:
        self.page.locator("#open-settings").click()
        for name, value in values.items():
            self.page.locator(f"#fields [name={name}]").fill(str(value))
        self.page.get_by_role("button", name="Done").click()

    def send(self, text: str) -> None:
        self.composer.fill(text)
        self.composer.press("Enter")

    def finish(self) -> str:
        """Wait for the end of an answer; its text."""
        self.page.locator(".assistant:last-child .again").wait_for()
        text: str = self.page.locator(".assistant:last-child .text").text_content()
        return text

    def answer_with(self, *chunks: dict[str, Any], done: bool = True) -> None:
        """From now on, these are the server's answer."""
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        body = "".join([*lines, "data: [DONE]\n\n"] if done else lines)
        self.fail_with(status=200, content_type="text/event-stream", body=body)

    def fail_with(self, **answer: Any) -> None:
        self.page.route(f"**{CHAT}", lambda route: route.fulfill(**answer))

    def assert_quiet(self) -> None:
        """No request to elsewhere, and no complaint but of a status that a test sent."""
        assert {url.removeprefix(self.address) for url in self.requests} <= PATHS
        assert [c for c in self.complaints if not c.startswith("Failed to load resource")] == []


def said(text: str) -> dict[str, Any]:
    """A chunk of one token."""
    token = {"id": 7, "text": text, "origin": "plain", "drafter": ""}
    chance = {"token": text, "logprob": -0.5, "bytes": list(text.encode())}
    return {
        "choices": [
            {
                "index": 0,
                "delta": {"content": text},
                "logprobs": {"content": [{**chance, "top_logprobs": [chance]}]},
                "finish_reason": None,
                "specx": {"tokens": [token], "proposed": 0, "accepted": 0},
            }
        ]
    }


# The file


def test_it_is_one_file_that_its_policy_can_name() -> None:
    """One script and one style, whose hashes the server sends; nothing inline beside them."""
    page = files("specx.serve").joinpath("page.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("<style") == 1
    assert not re.search(r"<[^>]*\s(style|on\w+|src)=", page)
    assert re.findall(r"https?:[^'\"\s]*", page) == ["http://www.w3.org/2000/svg"]
    assert "innerHTML" not in page


# A chat


def test_tokens_arrive_one_round_after_another(chat: Chat, server: Running) -> None:
    chat.set(**SEEDED)
    chat.page.evaluate(WATCH)
    chat.send(PROMPT)
    text = chat.finish()
    seen = [each for each in chat.page.evaluate("seen") if each["tokens"]]
    assert len({each["tokens"] for each in seen}) > SEEDED["max_tokens"] / 5
    assert all(each["stop"] and "tok/s" in each["figures"] for each in seen)
    asked = {key: value for key, value in chat.sent[0].items() if key != "stream"}
    assert text == server.chat(**{**asked, "stream": False}).text
    assert chat.sent[0]["messages"] == [{"role": "user", "content": PROMPT}]
    assert chat.tokens.count() == SEEDED["max_tokens"]
    figures = chat.page.locator(".figures").inner_text()
    for words in ("tok/s", "% accepted", "60 tokens", "seed 3", "cut off"):
        assert words in figures


def test_origins_are_marked_by_more_than_colour(chat: Chat, server: Running) -> None:
    chat.set(**SEEDED)
    chat.send(PROMPT)
    chat.finish()
    seen = [found.split()[1] for found in chat.tokens.evaluate_all("t => t.map(e => e.className)")]
    told = [token["origin"] for token in told_tokens(server, chat.sent[0])]
    assert seen == told
    assert {"accepted", "correction"} < set(seen)
    style = "e => [getComputedStyle(e).textDecorationLine, getComputedStyle(e).fontWeight]"
    marks = {
        origin: chat.page.locator(f".legend .{origin}").evaluate(style)
        for origin in ("accepted", "correction", "bonus")
    }
    assert marks == {
        "accepted": ["none", "400"],
        "correction": ["underline", "400"],
        "bonus": ["none", "700"],
    }
    chat.page.locator("#mark").uncheck()
    assert chat.page.locator(".legend .bonus").evaluate(style) == marks["accepted"]


def told_tokens(server: Running, asked: dict[str, Any]) -> list[Any]:
    """Tokens of the same answer, from the server itself."""
    stream = events(server.ask("POST", CHAT, asked).body)
    choices = [choice for event in stream for choice in event.get("choices", [])]
    return [token for choice in choices for token in choice.get("specx", {}).get("tokens", [])]


def test_a_token_tells_its_probability(chat: Chat, server: Running) -> None:
    chat.set(**SEEDED)
    chat.send(PROMPT)
    chat.finish()
    stream = events(server.ask("POST", CHAT, chat.sent[0]).body)
    choices = [choice for event in stream for choice in event.get("choices", [])]
    chances = [c for each in choices if each.get("logprobs") for c in each["logprobs"]["content"]]
    tokens = told_tokens(server, chat.sent[0])
    place = next(i for i, each in enumerate(tokens) if each["origin"] == "accepted")
    chat.tokens.nth(place).dispatch_event("click")
    shown = chat.panel.inner_text()
    for words in (f"Token {place + 1}", f"id {tokens[place]['id']}", "Accepted", "draft model"):
        assert words in shown
    rows = chat.panel.locator("tbody tr")
    assert rows.count() >= 5
    assert chat.panel.locator("tbody .chosen").count() == 1
    shares = [100 * math.exp(top["logprob"]) for top in chances[place]["top_logprobs"]]
    for row, share in zip(rows.all(), shares, strict=False):
        assert float(row.locator("td").first.inner_text().rstrip("%")) == pytest.approx(share, 0.01)


def test_keys_walk_an_answer(chat: Chat) -> None:
    chat.answer_with(*map(said, ["one", " two", "", "\n"]))
    chat.send("x")
    chat.finish()
    text, title = chat.page.locator(".assistant .text"), chat.page.locator("#token")
    text.focus()
    for key, place in [("Enter", 1), ("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2)]:
        text.press(key)
        assert title.inner_text() == f"Token {place}"
    chat.page.get_by_role("button", name="Next token").click()
    assert title.inner_text() == "Token 3"
    chat.page.get_by_role("button", name="Close").click()
    assert chat.panel.is_hidden()
    assert text.evaluate("e => e === document.activeElement")


def test_stop_ends_an_answer_and_the_next_turn_goes_on_from_it(chat: Chat) -> None:
    chat.set(temperature=1)
    chat.page.route(f"**{CHAT}", endless)
    chat.page.evaluate(STOP_AT_TEN)
    chat.send(PROMPT)
    partial = chat.finish()
    assert chat.tokens.count() < 100
    assert "stopped" in chat.page.locator(".figures").inner_text()
    assert chat.error.is_hidden()
    chat.page.unroute(f"**{CHAT}")
    chat.set(max_tokens=4)
    chat.send("and then")
    chat.finish()
    assert [turn["content"] for turn in chat.sent[-1]["messages"]] == [PROMPT, partial, "and then"]
    assert partial


def endless(route: Any) -> None:
    """Only the model's context ends it."""
    route.continue_(post_data=json.dumps({**route.request.post_data_json, "ignore_eos": True}))


def test_regenerate_replaces_the_last_answer(chat: Chat) -> None:
    chat.answer_with(said("first"))
    chat.send("x")
    assert chat.finish() == "first"
    chat.answer_with(said("second"))
    chat.page.get_by_role("button", name="Regenerate").click()
    chat.page.get_by_text("second").wait_for()
    assert chat.page.locator(".assistant").count() == 1
    assert len(chat.sent[-1]["messages"]) == 1
    chat.fail_with(status=500, body="")
    chat.page.get_by_role("button", name="Regenerate").click()
    chat.error.wait_for()
    assert chat.page.get_by_text("second").is_visible()
    assert chat.page.locator(".assistant").count() == 1


def test_a_new_chat_forgets(chat: Chat) -> None:
    chat.answer_with(said("a"))
    chat.send("x")
    chat.finish()
    chat.page.locator("#new").click()
    assert chat.page.locator("article").count() == 0
    chat.send("y")
    chat.finish()
    assert chat.sent[-1]["messages"] == [{"role": "user", "content": "y"}]


def test_enter_sends_unless_it_composes_or_shift_is_held(chat: Chat) -> None:
    chat.answer_with(said("a"))
    chat.composer.fill("ni")
    for marks in ("isComposing: true", "keyCode: 229"):
        chat.composer.evaluate(
            f"e => e.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Enter', {marks}}}))"
        )
    chat.composer.press("Shift+Enter")
    assert chat.composer.input_value() == "ni\n"
    assert chat.sent == []
    chat.composer.press("Enter")
    chat.finish()
    assert [turn["content"] for turn in chat.sent[0]["messages"]] == ["ni\n"]


def test_settings_are_sent_and_the_key_is_not_kept(chat: Chat) -> None:
    headers: list[str] = []
    chat.page.on("request", lambda request: headers.append(request.headers.get("authorization")))
    chat.set(system="Be brief.", top_p=0.5, min_p=0.1, top_k=3, key="secret")
    chat.answer_with(said("a"))
    chat.send("x")
    chat.finish()
    asked = chat.sent[0]
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (asked["top_p"], asked["min_p"], asked["top_k"]) == (0.5, 0.1, 3)
    assert not {"temperature", "seed", "max_tokens", "key"} & set(asked)
    assert headers[-1] == "Bearer secret"
    kept = chat.page.evaluate("JSON.stringify({...localStorage}) + document.cookie")
    assert "Be brief." in kept
    assert "secret" not in kept
    chat.page.reload()
    assert chat.page.locator("[name=system]").input_value() == "Be brief."


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_or_the_switch(browser: Any, address: str, scheme: str) -> None:
    other = {"light": "dark", "dark": "light"}[scheme]
    chat = Chat(browser, address, color_scheme=scheme)
    paper = "getComputedStyle(document.body).backgroundColor"
    colours = [chat.page.evaluate(paper)]
    for choice in (other, ""):
        chat.page.locator("[name=theme]").evaluate(
            "(e, to) => { e.value = to; e.dispatchEvent(new Event('change', {bubbles: true})) }",
            choice,
        )
        colours.append(chat.page.evaluate(paper))
    chat.page.close()
    seen = dict(zip([scheme, other], colours, strict=False))
    assert seen == {"light": "rgb(253, 253, 251)", "dark": "rgb(22, 24, 26)"}
    assert colours[2] == colours[0]


# Errors

WRONG_KEY = {"error": {"message": "wrong key", "type": "", "param": None, "code": None}}
BUSY = {"error": {"message": "2 requests are waiting.", "type": "", "param": None, "code": None}}
TROUBLES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a key is missing": ({"status": 401, "json": WRONG_KEY}, ("wants an API key", "Settings")),
    "the queue is full": (
        {"status": 503, "json": BUSY, "headers": {"Retry-After": "7"}},
        ("busy", "2 requests are waiting.", "in 7 s"),
    ),
    "no error of specx": ({"status": 502, "body": "<b>"}, ("The server answered 502.",)),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_an_error_is_told_and_nothing_typed_is_lost(chat: Chat, trouble: str) -> None:
    answer, words = TROUBLES[trouble]
    chat.fail_with(**answer)
    chat.send("a long\nmessage")
    chat.error.wait_for()
    for word in words:
        assert word in chat.error.inner_text()
    assert chat.composer.input_value() == "a long\nmessage"
    assert chat.page.locator("article").count() == 0
    chat.answer_with(said("well"))
    chat.composer.press("Enter")
    assert chat.finish() == "well"
    assert chat.error.is_hidden()
    assert chat.sent[-1]["messages"] == [{"role": "user", "content": "a long\nmessage"}]


def test_a_server_that_is_gone(chat: Chat) -> None:
    chat.page.route(f"**{CHAT}", lambda route: route.abort())
    chat.send("x")
    chat.error.wait_for()
    assert "cannot be reached" in chat.error.inner_text()
    assert chat.composer.input_value() == "x"


@pytest.mark.parametrize(
    ("last", "words"),
    [([{"error": {"message": "shutting down"}}], "shutting down"), ([], "ended the answer early")],
    ids=["an error event", "no end"],
)
def test_an_answer_that_breaks_off(chat: Chat, last: list[Any], words: str) -> None:
    chat.answer_with(said("so far"), *last, done=bool(last))
    chat.send("x")
    assert chat.finish() == "so far"
    assert words in chat.error.inner_text()
    assert "broken off" in chat.page.locator(".figures").inner_text()


# Safety and reach


def test_markup_stays_text(chat: Chat) -> None:
    chat.answer_with(said(MARKUP))
    chat.send(MARKUP)
    assert chat.finish() == MARKUP
    assert chat.page.locator(".user .text").text_content() == MARKUP
    chat.tokens.first.dispatch_event("click")
    assert chat.panel.locator("bdi").first.inner_text() == MARKUP
    chat.fail_with(status=400, json={"error": {"message": MARKUP}})
    chat.send("y")
    chat.error.wait_for()
    assert MARKUP in chat.error.inner_text()
    assert chat.page.locator("main :is(script, img, b), aside :is(script, img, b)").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_no_serious_barrier_and_no_sideways_scrolling(
    scheme: str, width: int, browser: Any, address: str
) -> None:
    size = {"width": width, "height": 850}
    chat = Chat(browser, address, color_scheme=scheme, viewport=size, bypass_csp=True)
    chat.set(**SEEDED)
    chat.send(f"# {'word' * 50}\n{PROMPT}")
    assert barriers(chat.page) == []
    chat.finish()
    chat.tokens.first.dispatch_event("click")
    chat.fail_with(status=401, json=WRONG_KEY)
    chat.send("word" * 200)
    chat.error.wait_for()
    assert barriers(chat.page) == []
    chat.page.locator("#open-settings").click()
    assert barriers(chat.page) == []
    too_wide = "parts => parts.filter(e => e.scrollWidth > e.clientWidth).map(e => e.id)"
    assert chat.page.locator("html, #log, #panel, #settings").evaluate_all(too_wide) == []
    chat.assert_quiet()
    chat.page.close()
