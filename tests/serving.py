"""A running `specx serve`, and clients that speak HTTP byte by byte.

The demo pair completes code and has no chat template; tests of chats give it one.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

__all__ = ["Answer", "Client", "Running", "chat", "events", "pair_with_template", "post", "serving"]

TEMPLATE = """
{%- for message in messages %}# {{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}# assistant:{% endif %}"""
STARTING = 120
LONGEST = 60
"""Seconds that a test waits at most, for a start and for a byte."""
READY = re.compile(r"specx: serving .+ at http://[^:]+:(\d+)")


@dataclass
class Running:
    """A server of its own process."""

    process: subprocess.Popen[str]
    port: int
    log: list[str] = field(default_factory=list)
    """Lines on standard error, the ready line included."""

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """One request on a connection of its own; `body` is made JSON unless it is bytes."""
        with Client(self.port) as client:
            client.send(request(method, path, body, self.port, headers))
            return client.answer()

    def chat(self, **fields: Any) -> Answer:
        """A request for a chat answer."""
        return self.ask("POST", "/v1/chat/completions", chat(**fields))

    def stop(self, number: int) -> int:
        """Send a signal and wait for the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=LONGEST)


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """The text of an answer, streamed or not."""
        if self.body.startswith(b"data:"):
            choices = [c for event in events(self.body) for c in event.get("choices", [])]
            return "".join(choice["delta"].get("content") or "" for choice in choices)
        text: str = self.json["choices"][0]["message"]["content"]
        return text


class Client:
    """A connection that sends and receives bytes as told."""

    def __init__(self, port: int, receiving: int | None = None) -> None:
        """`receiving`: bytes that it takes without reading them."""
        self.socket = socket.socket()
        if receiving is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receiving)
        self.socket.settimeout(LONGEST)
        self.socket.connect(("127.0.0.1", port))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> Answer:
        """The whole answer."""
        response = HTTPResponse(self.socket)
        response.begin()
        return Answer(response.status, dict(response.getheaders()), response.read())

    def receive(self, least: int) -> bytes:
        """At least this many bytes, or all until the end."""
        received = b""
        while len(received) < least and (more := self.socket.recv(min(65536, least))):
            received += more
        return received

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def chat(prompt: str = "def add(a, b):", **fields: Any) -> dict[str, Any]:
    """The body of a request."""
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 16, **fields}


def post(body: Any, port: int, path: str = "/v1/chat/completions", **headers: str) -> bytes:
    """A POST as bytes."""
    return request("POST", path, body, port, headers)


def request(method: str, path: str, body: Any, port: int, headers: Mapping[str, str]) -> bytes:
    """A request as bytes; a header of `headers` replaces the usual one, an empty one removes it."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    usual = {"Host": f"127.0.0.1:{port}", "Connection": "close"}
    if body is not None:
        usual |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
    given = {name.replace("_", "-").title(): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in {**usual, **given}.items() if value]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode() + data


def events(stream: bytes) -> list[dict[str, Any]]:
    """The JSON of a stream's events, without the ``[DONE]``."""
    lines = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def pair_with_template(verifier: Path, drafter: Path, folder: Path) -> list[str]:
    """Options of `specx serve` for this pair, the verifier with a chat template."""
    from chat_models import with_template  # imports gguf, which most tests do without

    chatting = with_template(verifier, folder / "verifier.gguf", TEMPLATE)
    return ["-m", str(chatting), "-md", str(drafter), "--gamma", "4", "-t", "1"]


@contextmanager
def serving(*options: str, env: Mapping[str, str] | None = None) -> Iterator[Running]:
    """`specx serve` with the demo pair, or what the options say, on a free port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "specx", "serve", "--port", "0", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )
    log: list[str] = []
    ready = threading.Event()
    reader = threading.Thread(target=_read, args=(process, log, ready), daemon=True)
    reader.start()
    try:
        ready.wait(STARTING)
        found = READY.search("".join(log))
        assert found, f"the server did not start: {log}"
        yield Running(process, int(found[1]), log)
    finally:
        process.kill()
        process.wait()
        reader.join(LONGEST)
        assert process.stderr is not None
        process.stderr.close()


def _read(process: subprocess.Popen[str], log: list[str], ready: threading.Event) -> None:
    """Keep the log, so that the pipe never fills."""
    assert process.stderr is not None
    for line in process.stderr:
        log.append(line)
        if READY.search(line):
            ready.set()
    ready.set()
