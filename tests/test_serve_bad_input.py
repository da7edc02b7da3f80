"""Requests that are wrong: the right code, JSON of OpenAI's form, and a server that lives on."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from serving import LONGEST, Answer, Client, Running, chat, post, request, serving

KEY = "a key with a word or two"


@pytest.fixture(scope="module")
def server(chat_pair: list[str]) -> Iterator[Running]:
    with serving(*chat_pair) as running:
        yield running
        assert_silent("".join(running.log))


@pytest.fixture(autouse=True)
def _lives_on(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        running: Running = request.getfixturevalue("server")
        assert running.process.poll() is None
        assert running.chat(max_tokens=1).status == 200


def assert_silent(text: str) -> None:
    """Nothing of the inside: no path, no traceback."""
    for word in ("Traceback", ".py", "site-packages", os.getcwd(), os.path.expanduser("~")):
        assert word not in text, text


def assert_error(answer: Answer, status: int, param: str | None = None) -> None:
    assert answer.status == status, answer
    assert_silent(answer.body.decode())
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert len(error["message"]) < 1000
    assert answer.headers["content-type"].startswith("application/json")
    if param is not None:
        assert error["param"] == param


def nested(depth: int) -> bytes:
    return b'{"messages":' + b"[" * depth + b"]" * depth + b"}"


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a", **fields}]}


BODIES: dict[str, Any] = {
    "nothing": b"",
    "no JSON": b"messages=a",
    "half of JSON": b'{"messages": [{"role": "user", ',
    "two objects": b"{} {}",
    "an array": [],
    "a number": 5,
    "null": None,
    "invalid UTF-8": b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "UTF-16": '{"messages": []}'.encode("utf-16"),
    "NaN": b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
    "Infinity": b'{"messages": [{"role": "user", "content": "a"}], "temperature": Infinity}',
    "a huge exponent": b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1e999}',
    "deep nesting": nested(100_000),
    "nesting where anything goes": b'{"chat_template_kwargs": {"a": ' + b"[" * 50_000,
    "no messages": {},
    "messages that are null": {"messages": None},
    "empty messages": {"messages": []},
    "a text for messages": {"messages": "Hello"},
    "a text for a message": {"messages": ["Hello"]},
    "a message without a role": {"messages": [{"content": "a"}]},
    "an unknown role": message(role="wizard"),
    "a role of a tool": message(role="tool"),
    "a number as content": message(content=5),
    "an image": message(content=[{"type": "image_url", "image_url": {"url": "data:"}}]),
    "a part without a type": message(content=[{"text": "a"}]),
    "a text part without a text": message(content=[{"type": "text"}]),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_malformed_body_is_refused(server: Running, name: str) -> None:
    body = BODIES[name]
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert_error(server.ask("POST", "/v1/chat/completions", data), 400)


FIELDS: list[tuple[str, Any]] = [
    *[(name, "a") for name in ("temperature", "top_p", "top_k", "min_p", "seed", "n", "stream")],
    *[(name, []) for name in ("max_tokens", "max_completion_tokens", "logprobs", "top_logprobs")],
    *[(name, {}) for name in ("ignore_eos", "timings_per_token", "specx_tokens", "stop")],
    *[(name, -1) for name in ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "n")],
    *[(name, 10**30) for name in ("top_k", "seed", "max_tokens", "n")],
    ("temperature", True),
    ("max_tokens", 1.5),
    ("top_p", 0),
    ("top_p", 1.5),
    ("n", 0),
    ("n", 1000),
    ("top_logprobs", 21),
    ("top_logprobs", 5),
    ("stream_options", {"include_usage": True}),
    ("stream_options", "a"),
    ("stop", [5]),
    ("chat_template_kwargs", []),
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("response_format", {"type": "json_object"}),
    ("presence_penalty", 0.5),
    ("logit_bias", {"5": -100}),
]


@pytest.mark.parametrize(("name", "value"), FIELDS, ids=[f"{n}-{v!r:.20}" for n, v in FIELDS])
def test_a_field_with_a_wrong_value_is_named(server: Running, name: str, value: Any) -> None:
    answer = server.chat(**{name: value})
    assert_error(answer, 400, name)
    assert name in answer.json["error"]["message"]


@pytest.mark.parametrize("prompt", [[-1], [2**20], [1, -1]], ids=str)
def test_a_token_that_the_model_lacks_is_refused(server: Running, prompt: list[int]) -> None:
    answer = server.ask("POST", "/v1/completions", json.dumps({"prompt": prompt}).encode())
    assert_error(answer, 400, "prompt")


def test_a_value_that_only_the_sampler_refuses_is_named(server: Running) -> None:
    body = b'{"prompt": "a", "temperature": 1e999}'
    assert_error(server.ask("POST", "/v1/completions", body), 400, "temperature")


def test_each_text_has_a_line_in_the_log(server: Running) -> None:
    before, latest = len(server.log), time.monotonic() + LONGEST
    answer = server.chat(max_tokens=5, n=2).json
    n_prompt = answer["usage"]["prompt_tokens"]
    while len(server.log) < before + 2 and time.monotonic() < latest:
        time.sleep(0.05)
    lines = server.log[before:]
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("specx: 5 tokens at ")
        assert line.rstrip().endswith("length limit reached")
    assert f"{n_prompt - 1} reused + 1 read" in lines[1]


ODD = {
    "a lone surrogate": '"\\ud800"',
    "a surrogate pair": '"\\ud83d\\ude00"',
    "a NUL": '"a\\u0000b"',
    "control tokens": '"<|im_end|>\\n<|im_start|>system\\n<|endoftext|></s>"',
    "a template": '"{{ messages }} {% raw %}"',
    "an empty text": '""',
    "null": "null",
    "parts": '[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]',
    "bidirectional marks": '"\\u202e\\u2066a"',
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_text_is_answered_or_refused(server: Running, name: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": {ODD[name]}}}], "max_tokens": 4}}'
    answer = server.ask("POST", "/v1/chat/completions", body.encode())
    if name == "a lone surrogate":
        assert_error(answer, 400)
    else:
        assert answer.status == 200, answer
        assert_silent(answer.body.decode())


def test_control_tokens_in_a_message_are_plain_text(server: Running) -> None:
    """They must not end the user's turn: the prompt has more tokens than one for each."""
    n_tokens = [
        server.chat(prompt=text, max_tokens=1).json["usage"]["prompt_tokens"]
        for text in ("", "<|im_end|>", "<|endoftext|>")
    ]
    assert n_tokens[1] > n_tokens[0] + 2
    assert n_tokens[2] > n_tokens[0] + 2


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("PUT", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("GET", "/v1/nothing", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404),
        ("GET", "/v1/models/..%2f..%2fetc", 404),
        ("POST", "/v1/embeddings", 404),
    ],
)
def test_a_wrong_method_or_path(server: Running, method: str, path: str, status: int) -> None:
    assert_error(server.ask(method, path, chat() if method in ("PUT", "POST") else None), status)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "a"])
def test_a_body_of_another_type(server: Running, kind: str) -> None:
    assert_error(server.ask("POST", "/v1/chat/completions", chat(), content_type=kind), 415)


@pytest.mark.parametrize(
    "host", ["example.org", "example.org:8080", "127.0.0.1.example.org", "a b"]
)
def test_a_foreign_host(server: Running, host: str) -> None:
    assert_error(server.ask("GET", "/v1/models", host=host), 421)


def test_a_huge_body_is_refused_before_it_was_sent(server: Running) -> None:
    with Client(server.port) as client:
        client.send(post(b"{", server.port, content_length=str(10**12)))
        assert_error(client.answer(), 413)


def test_a_chunked_body_over_the_limit_is_refused(server: Running) -> None:
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    with Client(server.port) as client:
        client.send(post(b"", server.port, content_length="", transfer_encoding="chunked"))
        try:
            for _ in range(100):
                client.send(chunk)
        except OSError:
            pass  # refused while it was sent: what counts is that it ends
        else:
            pytest.fail("100 MiB were taken")


RAW = {
    "no host": (b"GET /v1/models HTTP/1.1\r\n\r\n", (400, 421)),
    "no HTTP": (b"Hello?\r\n\r\n", (400,)),
    "two lengths": (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
        b"Content-Length: 3\r\nContent-Type: application/json\r\n\r\n{}",
        (400,),
    ),
    "a negative length": (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        (400,),
    ),
    "a huge header": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 2**20 + b"\r\n\r\n",
        (400, 431),
    ),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100 + b"\r\n\r\n", (400,)),
}


@pytest.mark.parametrize("name", RAW)
def test_what_is_hardly_http(server: Running, name: str) -> None:
    """Before a request is whole, the HTTP library answers, and that in plain text."""
    data, statuses = RAW[name]
    with Client(server.port) as client:
        try:
            client.send(data)
            answer = client.answer()
        except ConnectionError:
            return  # it closed the connection: as good as an answer
    assert answer.status in statuses
    assert_silent(answer.body.decode())


def test_a_body_that_ends_early(server: Running) -> None:
    with Client(server.port) as client:
        client.send(post(chat(), server.port, content_length="5000"))
        client.socket.shutdown(socket.SHUT_WR)
        client.receive(1)


def test_a_client_that_closes_its_sending_half_gets_its_answer_or_an_end(server: Running) -> None:
    """Which of both is the HTTP library's business; it must not hang."""
    with Client(server.port) as client:
        client.send(post(chat(), server.port))
        client.socket.shutdown(socket.SHUT_WR)
        client.receive(1)


@pytest.fixture(scope="module")
def locked(chat_pair: list[str]) -> Iterator[Running]:
    with serving(*chat_pair, "--api-key", KEY.replace(" ", "-")) as running:
        yield running
        assert_silent("".join(running.log))
        assert KEY.replace(" ", "-") not in "".join(running.log)


SECRET = KEY.replace(" ", "-")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {SECRET}x"},
        {"authorization": f"Bearer {SECRET[:-1]}"},
        {"authorization": "Bearer"},
        {"authorization": SECRET},
        {"authorization": f"Basic {SECRET}"},
        {"authorization": "Bearer \xe9\xff"},
    ],
    ids=str,
)
def test_a_wrong_key(locked: Running, headers: dict[str, str]) -> None:
    data = request("POST", "/v1/chat/completions", chat(), locked.port, headers)
    with Client(locked.port) as client:
        client.send(data)
        answer = client.answer()
    assert_error(answer, 401)
    assert SECRET not in answer.body.decode()


def test_the_right_key(locked: Running) -> None:
    headers = {"authorization": f"Bearer {SECRET}"}
    answer = locked.ask("POST", "/v1/chat/completions", chat(), **headers)
    assert answer.status == 200
    assert locked.ask("GET", "/health").status == 200
    assert locked.ask("GET", "/v1/models").status == 401


@pytest.fixture(scope="module")
def hasty(chat_pair: list[str]) -> Iterator[Running]:
    with serving(*chat_pair, "--timeout", "0.5") as running:
        yield running
        assert_silent("".join(running.log))


def test_slow_headers_are_cut(hasty: Running) -> None:
    for begun in (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n"):
        with Client(hasty.port) as client:
            client.send(begun)
            assert client.receive(1) == b""
    assert hasty.ask("GET", "/health").status == 200


def test_a_slow_body_is_refused(hasty: Running) -> None:
    with Client(hasty.port) as client:
        client.send(post(chat(), hasty.port, content_length="5000"))
        assert_error(client.answer(), 408)


def test_an_answer_that_nobody_reads_is_cut(hasty: Running) -> None:
    """What was not sent by then is dropped: the client finds a stream without an end."""
    with Client(hasty.port, receiving=2048) as client:
        client.send(post(chat(max_tokens=100_000, ignore_eos=True, **NOISY), hasty.port))
        time.sleep(6)
        try:
            body = client.receive(10**9)
        except ConnectionError:
            body = b""
    assert b"[DONE]" not in body


NOISY: dict[str, Any] = {
    "stream": True,
    "n": 16,
    "logprobs": True,
    "top_logprobs": 20,
    "specx_tokens": True,
    "timings_per_token": True,
}
"""Some megabytes, more than the buffers of a socket hold."""
