"""Requests in, answers out: the server's parts without HTTP, on the demo pair."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import specx
from specx.serve.answers import Answer
from specx.serve.engine import Ended, Engine, Event, Failed, Job, Over, Said
from specx.serve.logprobs import log_softmax
from specx.serve.wire import Refused, read_chat, read_completion
from specx.session.chat import ChatOptions

PROMPT = "def fibonacci(n):"


@pytest.fixture(scope="module")
def session() -> Iterator[specx.Session]:
    with specx.load() as opened:
        yield opened


@pytest.fixture
def engine(session: specx.Session) -> Iterator[Engine]:
    made = Engine(session, most_waiting=2, template=ChatOptions())
    made.start()
    yield made
    made.close()


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def submit(engine: Engine, **fields: Any) -> tuple[Job, queue.Queue[Event]]:
    events: queue.Queue[Event] = queue.Queue()
    job = Job(read_completion(body(prompt=PROMPT, **fields)), events.put)
    engine.submit(job)
    return job, events


def until_over(events: queue.Queue[Event]) -> list[Event]:
    return list(iter(lambda: events.get(timeout=60), Over()))


def stream_of(job: Job, events: list[Event]) -> list[Any]:
    """The stream's chunks; the last line is the one that ends it."""
    answer = Answer(job.wanted, "demo", "specx")
    sent: list[str] = []
    for event in events:
        if isinstance(event, Said):
            sent += answer.said(event)
        elif isinstance(event, Ended):
            sent += answer.ended(event)
    sent += answer.closing()
    assert all(each.startswith("data: ") and each.endswith("\n\n") for each in sent)
    assert sent[-1] == "data: [DONE]\n\n"
    return [json.loads(each.removeprefix("data: ")) for each in sent[:-1]]


def test_a_text_is_the_one_that_the_session_writes(engine: Engine, session: specx.Session) -> None:
    job, events = submit(engine, seed=3, max_tokens=40, stream=True)
    chunks = stream_of(job, until_over(events))
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    wanted = session.generate(PROMPT, seed=3, max_tokens=40, raw=True)
    assert text == wanted.text
    assert text
    finishes = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert finishes == [None] * (len(chunks) - 1) + ["length"]
    assert chunks[-1]["timings"]["draft_n_accepted"] == wanted.tally.accepted


def test_logprobs_are_those_of_untempered_rows(engine: Engine, session: specx.Session) -> None:
    job, events = submit(engine, seed=4, max_tokens=12, logprobs=2)
    answer = Answer(job.wanted, "demo", "specx")
    for event in until_over(events):
        if isinstance(event, Said):
            answer.gathered(event)
        elif isinstance(event, Ended):
            answer.finished(event)
            tokens = event.result.tokens
    found = answer.whole()["choices"][0]["logprobs"]["token_logprobs"]
    verifier = session.pair.verifier
    prompt = verifier.tokenizer.encode(PROMPT, add_special=True, parse_special=True)
    with specx.load() as fresh:
        rows = fresh.pair.verifier.forward([*prompt, *tokens[:-1]], len(tokens))
    wanted = [log_softmax(row)[token] for row, token in zip(rows, tokens, strict=True)]
    np.testing.assert_allclose(found, wanted, atol=0.05)


def test_a_cancelled_request_ends_within_a_round(engine: Engine) -> None:
    job, events = submit(engine, seed=5, max_tokens=4000, ignore_eos=True)
    assert isinstance(events.get(timeout=60), Said)
    job.cancel()
    assert not [event for event in until_over(events) if isinstance(event, Ended | Failed)]
    _, after = submit(engine, seed=5, max_tokens=4)
    assert isinstance(until_over(after)[-1], Ended)


def test_a_full_queue_refuses(engine: Engine) -> None:
    jobs: list[tuple[Job, queue.Queue[Event]]] = []

    def fill() -> None:
        for _ in range(5):
            jobs.append(submit(engine, max_tokens=2000, ignore_eos=True))

    with pytest.raises(Refused, match="waiting") as refused:
        fill()
    assert refused.value.status == 503
    assert int(refused.value.headers["Retry-After"]) >= 1
    assert len(jobs) in (2, 3)
    for job, _ in jobs:
        job.cancel()
    for _, events in jobs:
        until_over(events)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("presence_penalty", 0.5),
        ("response_format", {"type": "json_object"}),
        ("temperature", "hot"),
        ("top_k", 10**30),
        ("n", 1000),
        ("seed", -1),
    ],
)
def test_what_cannot_be_honoured_is_named(field: str, value: object) -> None:
    with pytest.raises(Refused) as refused:
        read_chat(body(messages=[{"role": "user", "content": "hi"}], **{field: value}))
    assert refused.value.status == 400
    assert refused.value.param == field


def test_nulls_parts_and_unknown_fields_are_accepted() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    wanted = read_chat(
        body(
            messages=[{"role": "developer", "content": parts}],
            stop=None,
            max_tokens=None,
            max_completion_tokens=5,
            user="someone",
        )
    )
    assert wanted.prompts == [[{"role": "system", "content": "ab"}]]
    assert wanted.options["max_tokens"] == 5


def test_half_a_character_is_refused() -> None:
    with pytest.raises(Refused, match="half a character"):
        read_chat(b'{"messages": [{"role": "user", "content": "\\ud800"}]}')
