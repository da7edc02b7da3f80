"""Real clients against a live server: the packages `openai` and `llm`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from serving import Client, Running, chat, events, post, serving

import specx
from specx.verify.chisquare import chi_square

PROMPT = "for i in range("
MESSAGES: Any = [{"role": "user", "content": "def add(a, b):"}]
SETTINGS: dict[str, Any] = {"seed": 7, "max_tokens": 24, "temperature": 0.8}


@pytest.fixture(scope="module")
def server(chat_pair: list[str]) -> Iterator[Running]:
    with serving(*chat_pair) as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url(server), api_key="none", max_retries=0) as made:
        yield made


def url(server: Running) -> str:
    return f"http://127.0.0.1:{server.port}/v1"


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    given = {"model": "any", "messages": MESSAGES, **SETTINGS, **fields}
    return client.chat.completions.create(**given)


def test_a_chat(client: openai.OpenAI) -> None:
    done = ask(client)
    assert done.choices[0].message.role == "assistant"
    assert done.choices[0].message.content
    assert done.choices[0].finish_reason == "length"
    assert done.usage.completion_tokens == 24
    assert done.usage.completion_tokens_details.accepted_prediction_tokens > 0
    again = ask(client)
    assert again.choices[0].message.content == done.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens == done.usage.prompt_tokens - 1


def test_a_stream_is_the_same_text(client: openai.OpenAI) -> None:
    whole = ask(client)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 24
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + [
        "length"
    ]


def test_an_asynchronous_client(server: Running, client: openai.OpenAI) -> None:
    async def go() -> list[str]:
        async with openai.AsyncOpenAI(base_url=url(server), api_key="none") as made:
            given: Any = {"model": "any", "messages": MESSAGES, **SETTINGS}
            stream = await made.chat.completions.create(**given, stream=True)
            streamed = [chunk.choices[0].delta.content or "" async for chunk in stream]
            whole = await made.chat.completions.create(**given)
            return ["".join(streamed), whole.choices[0].message.content or ""]

    assert asyncio.run(go()) == [ask(client).choices[0].message.content] * 2


def test_log_probabilities_stand_beside_each_token(client: openai.OpenAI) -> None:
    choice = ask(client, logprobs=True, top_logprobs=3).choices[0]
    entries = choice.logprobs.content
    assert len(entries) == 24
    assert b"".join(bytes(each.bytes) for each in entries).decode() == choice.message.content
    for each in entries:
        assert each.logprob <= each.top_logprobs[0].logprob <= 0
        assert len(each.top_logprobs) == 3
    assert any(each.logprob < -0.01 for each in entries)  # llama.cpp's server has 0.0 for all


def test_log_probabilities_end_with_the_text_at_a_stop(client: openai.OpenAI) -> None:
    whole = ask(client).choices[0].message.content
    stop = whole[len(whole) // 2 :][:3]
    choice = ask(client, stop=[stop], logprobs=True).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content == whole[: whole.index(stop)]
    said = b"".join(bytes(each.bytes) for each in choice.logprobs.content).decode()
    assert said.startswith(choice.message.content)
    assert len(said) < len(choice.message.content) + 12  # the last token may reach into the stop


def test_several_texts(client: openai.OpenAI) -> None:
    choices = ask(client, n=3).choices
    texts = [choice.message.content for choice in choices]
    assert [choice.index for choice in choices] == [0, 1, 2]
    assert texts == [ask(client, seed=7 + place).choices[0].message.content for place in range(3)]
    assert len(set(texts)) > 1


def test_completions(client: openai.OpenAI) -> None:
    done = client.completions.create(
        model="any", prompt=["def add(a, b):", "class"], max_tokens=8, seed=1, logprobs=2
    )
    assert [choice.index for choice in done.choices] == [0, 1]
    logprobs = done.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == done.choices[0].text
    assert len(logprobs.top_logprobs or []) == 8


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    with pytest.raises(openai.NotFoundError, match="no model"):
        client.models.retrieve("other")


def test_an_unsupported_field_is_named(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="presence_penalty"):
        ask(client, presence_penalty=1.0)


def test_a_stream_byte_by_byte(server: Running) -> None:
    """Role first, reasons null until the last, the mark at the end, and nothing between."""
    with Client(server.port) as raw:
        raw.send(post(chat(stream=True, seed=1), server.port))
        answer = raw.answer()
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = answer.body.split(b"\n\n")
    assert lines[-2:] == [b"data: [DONE]", b""]
    assert all(line.startswith(b"data: {") for line in lines[:-2])
    found = events(answer.body)
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [c["choices"][0]["finish_reason"] for c in found[:-1]] == [None] * (len(found) - 1)
    assert found[-1]["choices"][0]["finish_reason"] == "length"
    assert found[-1]["choices"][0]["delta"] == {}
    assert found[-1]["timings"]["predicted_n"] == 16
    assert all("usage" not in each for each in found)
    assert len({each["id"] for each in found}) == 1


def test_run_writes_the_same(server: Running, chat_pair: list[str]) -> None:
    command = [sys.executable, "-m", "specx", "run", *chat_pair, "-p", "def add(a, b):"]
    asked = ["-s", "7", "-n", "24", "--temp", "0.8", "--json"]
    done = subprocess.run([*command, *asked], capture_output=True, text=True, check=True)
    served = server.chat(prompt="def add(a, b):", **SETTINGS)
    assert served.text == json.loads(done.stdout)["text"]


def test_ten_greedy_turns_reuse_every_prefix(server: Running, chat_pair: list[str]) -> None:
    """Each turn reads what is new; the texts are those of a server that was never asked before."""
    messages: list[dict[str, str]] = []
    held = 0
    for turn in range(10):
        messages.append({"role": "user", "content": f"x{turn} ="})
        answer = server.chat(messages=messages, temperature=0, max_tokens=8, prompt=None)
        usage = answer.json["usage"]
        if turn:
            assert usage["prompt_tokens_details"]["cached_tokens"] >= held - 1
        held = usage["prompt_tokens"]
        with specx.load(chat_pair[1], chat_pair[3], threads=1) as fresh:
            whole = fresh.generate(messages, temperature=0, max_tokens=8, gamma=4)
        assert answer.text == whole.text
        messages.append({"role": "assistant", "content": answer.text})


def served(server: Running, n_requests: int = 75) -> Counter[str]:
    """Texts of one client, beside another who asks for something else in between."""
    fields = {"temperature": 1, "top_k": 3, "top_p": 1, "max_tokens": 2, "ignore_eos": True}
    seen: Counter[str] = Counter()
    for place in range(n_requests):
        asked = {"prompt": PROMPT, "n": 16, "seed": 16 * place, **fields}
        answer = server.ask("POST", "/v1/completions", asked).json
        seen.update(choice["text"] for choice in answer["choices"])
        server.ask("POST", "/v1/completions", {"prompt": "class Stack:" * 8, "max_tokens": 1})
    return seen


def law_of(pair: list[str], temperature: float) -> dict[str, float]:
    """The verifier's own distribution of two tokens, as text."""
    params = specx.SamplingParams(temperature=temperature, top_k=3, top_p=1)
    law: dict[str, float] = {}
    with specx.load(pair[1], threads=1) as fresh:
        verifier = fresh.pair.verifier
        tokenizer = verifier.tokenizer
        prompt = tokenizer.encode(PROMPT, add_special=True, parse_special=True)

        def after(tokens: list[int]) -> dict[int, float]:
            verifier.truncate(0)
            row = specx.distribution(verifier.forward([*prompt, *tokens])[-1], params)
            assert row.ids is not None
            return dict(zip(row.ids.tolist(), row.probs.tolist(), strict=True))

        for first, chance in after([]).items():
            for second, more in after([first]).items():
                data = tokenizer.token_bytes(first) + tokenizer.token_bytes(second)
                text = data.decode("utf-8", "replace")
                law[text] = law.get(text, 0) + chance * more
    return law


def test_served_texts_have_the_verifiers_distribution(
    server: Running, chat_pair: list[str]
) -> None:
    seen = served(server)
    found = chi_square(seen, law_of(chat_pair, 1), 1e-6)
    assert found.holds, found
    assert found.degrees >= 3
    assert not chi_square(seen, law_of(chat_pair, 0.7), 1e-6).holds  # it would see another one


def test_simons_llm(server: Running, tmp_path: Path) -> None:
    model = f"- model_id: local\n  model_name: any\n  api_base: {url(server)}\n"
    (tmp_path / "extra-openai-models.yaml").write_text(model)
    command = [sys.executable, "-m", "llm", "-m", "local", "def add(a, b):"]
    for name, value in SETTINGS.items():
        command += ["-o", name, str(value)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == server.chat(prompt="def add(a, b):", **SETTINGS).text.strip()
