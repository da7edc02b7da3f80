"""Many clients at once, clients that vanish, and a server that is told to end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from serving import Client, Running, chat, events, post, serving

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")

CLIENTS, REQUESTS = 16, 200
WARM_UP = 50
GROWTH = 32 << 20
"""Bytes that a hundred and fifty requests may add; a leak of one answer's rows adds far more."""
PROMPTS = ("def add(a, b):", "class Stack:", "for i in range(", "import os\n", "x = [", "return ")
ENDLESS: dict[str, Any] = {"max_tokens": 100_000, "ignore_eos": True, "stream": True}
"""Goes on until the context is full, which takes seconds."""


@pytest.fixture(scope="module")
def server(chat_pair: list[str]) -> Iterator[Running]:
    with serving(*chat_pair, "--queue", "40") as running:
        yield running


@pytest.fixture
def small(chat_pair: list[str]) -> Iterator[Running]:
    with serving(*chat_pair, "--queue", "2", "-c", "4096") as running:
        yield running


def fields_of(place: int) -> dict[str, Any]:
    """The request at this place."""
    prompt = PROMPTS[place % len(PROMPTS)]
    return {"prompt": prompt, "seed": place % 4, "max_tokens": 24, "temperature": 0.8}


def ask(server: Running, place: int, expected: dict[str, str]) -> str:
    """Send a request; a third of the clients leave at a random place. What is wrong, or nothing."""
    chance = random.Random(place)
    fields, stream = fields_of(place), chance.random() < 0.5
    data = post(chat(**fields, stream=stream), server.port)
    with Client(server.port) as client:
        if chance.random() < 1 / 3:
            sent = data[: chance.choice([10, len(data) - 5, len(data)])]
            client.send(sent)
            if sent == data:
                client.receive(chance.choice([0, 1, 300, 1500]))
            return ""
        client.send(data)
        answer = client.answer()
    if answer.status != 200:
        return f"{place}: {answer}"
    if stream and not answer.body.endswith(b"data: [DONE]\n\n"):
        return f"{place}: the stream has no end: {answer.body[-80:]!r}"
    text = expected[json.dumps(fields)]
    return "" if answer.text == text else f"{place}: {answer.text!r} is not {text!r}"


def test_two_hundred_requests_of_sixteen_clients(server: Running) -> None:
    expected = {
        json.dumps(fields_of(place)): server.chat(**fields_of(place)).text for place in range(12)
    }
    assert len(set(expected.values())) > 6  # the texts differ, or a mix-up would not show
    process = psutil.Process(server.process.pid)

    def ask_here(place: int) -> str:
        return ask(server, place, expected)

    with ThreadPoolExecutor(CLIENTS) as clients:
        wrong = list(clients.map(ask_here, range(WARM_UP)))
        before = process.memory_info().rss
        wrong += clients.map(ask_here, range(WARM_UP, REQUESTS))
    assert [each for each in wrong if each] == []
    assert server.chat(**fields_of(0)).text == expected[json.dumps(fields_of(0))]
    assert process.memory_info().rss - before < GROWTH
    assert process.num_fds() < 60


def begin(server: Running, **fields: Any) -> Client:
    """A client whose answer has begun."""
    client = Client(server.port)
    client.send(post(chat(**{**ENDLESS, **fields}), server.port))
    assert b"200" in client.receive(15)
    return client


def queue_up(server: Running, prompt: str) -> Client:
    """A client that waits."""
    client = Client(server.port)
    client.send(post(chat(prompt=prompt), server.port))
    return client


def test_a_full_queue_answers_503_and_serves_those_who_wait(small: Running) -> None:
    first = begin(small)
    waiting = [queue_up(small, prompt) for prompt in PROMPTS[:2]]
    refused = small.chat()
    assert refused.status == 503, refused
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json["error"]["code"] == "queue_full"
    first.close()
    for client in waiting:
        with client:
            assert client.answer().status == 200
    assert small.chat().status == 200


def test_a_disconnect_stops_the_work_within_a_round(small: Running) -> None:
    """The next answer begins although the first would have gone on to the end of the context."""
    client = begin(small)
    client.close()
    generated = small.chat(max_tokens=1)
    assert generated.status == 200
    assert predicted(small) < 2000


def metric(server: Running, name: str) -> float:
    """A figure of the server's own."""
    lines = server.ask("GET", "/metrics").body.decode().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(name + " "))
    return float(value)


def predicted(server: Running) -> float:
    """Tokens that the server has generated, by its own count."""
    return metric(server, "specx_tokens_total")


def test_kill_9_of_a_client_in_mid_stream(small: Running) -> None:
    code = (
        "import socket, sys, time\n"
        f"client = socket.create_connection(('127.0.0.1', {small.port}))\n"
        f"client.sendall({post(chat(**ENDLESS), small.port)!r})\n"
        "print(client.recv(2000)[:15]); sys.stdout.flush()\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert b"200" in client.stdout.readline()
        client.kill()
    assert small.chat().status == 200
    assert predicted(small) < 2000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_open_streams_properly(small: Running, number: int) -> None:
    with begin(small) as streaming, queue_up(small, "a") as waiting:
        # A connection that nobody took yet would be reset.
        while not metric(small, "specx_requests_waiting"):
            time.sleep(0.01)
        small.process.send_signal(number)
        stream = streaming.receive(10**9)
        refused = waiting.answer()
    body = stream.replace(b"\r\n", b"\n")
    found = events(body)
    assert body.rstrip().removesuffix(b"0").rstrip().endswith(b"data: [DONE]")
    assert found[-1]["error"]["code"] == "shutting_down"
    assert refused.status == 503
    assert small.process.wait(timeout=60) == 0
    assert "Traceback" not in "".join(small.log)


def test_a_signal_ends_an_idle_server(small: Running) -> None:
    small.chat()
    assert small.stop(signal.SIGTERM) == 0
    assert "Traceback" not in "".join(small.log)


def test_a_port_in_use_is_one_line(small: Running) -> None:
    command = [sys.executable, "-m", "specx", "serve", "--port", str(small.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert str(small.port) in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_client_that_never_reads_harms_no_other(small: Running) -> None:
    """The stream fills the socket's buffers; the next answer must come all the same."""
    with begin(small) as silent:
        silent.socket.setsockopt(6, 1, 1)
        results: list[int] = []
        other = threading.Thread(target=lambda: results.append(small.chat().status))
        other.start()
        other.join(60)
    other.join(60)
    assert results == [200]
