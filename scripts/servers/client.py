"""A client that streams the answers of a server of OpenAI's API, and times them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any

from specx.errors import SpecxError

__all__ = ["Chat", "Reply", "ServerFailed"]

LONGEST = 600.0
"""Seconds between two bytes of an answer."""


class ServerFailed(SpecxError):
    """A server did not start, refused a request, or broke off an answer."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer and its figures."""

    text: str = field(repr=False)
    n_prompt: int
    n_cached: int
    """Tokens of the prompt that the server did not read again."""
    n_tokens: int
    first_s: float
    """Time to first token: from sending the request to the first text."""
    tok_s: float
    """Decoding, by the server's own clock."""
    wall_tok_s: float | None
    """The same by ours, from the first piece of text to the last; None for a single piece."""
    drafted: int
    accepted: int

    @property
    def n_read(self) -> int:
        """Tokens of the prompt that the server read."""
        return self.n_prompt - self.n_cached


class Chat:
    """A conversation with a server; each answer becomes part of the next prompt.

    Parameters
    ----------
    port
        Of a server on this machine.
    system
        The system message; a new one keeps the server from knowing the prompt already.
    request
        Fields of each request besides the messages.
    """

    def __init__(self, port: int, system: str, request: dict[str, Any]) -> None:
        self._port = port
        self._messages = [{"role": "system", "content": system}]
        self._request = request

    def say(self, text: str) -> Reply:
        """The answer to the next turn.

        Raises
        ------
        ServerFailed
            If there is none.
        """
        self._messages.append({"role": "user", "content": text})
        body = {
            "messages": self._messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "timings_per_token": True,
            **self._request,
        }
        begun = time.perf_counter()
        reply = read_reply(begun, chunks(self._port, body))
        self._messages.append({"role": "assistant", "content": reply.text})
        return reply


def chunks(port: int, body: dict[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
    """(time of arrival, chunk) for all chunks of the answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=LONGEST)
    try:
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps(body),
            {"Content-Type": "application/json"},
        )
        response = connection.getresponse()
        if response.status != 200:
            raise ServerFailed(f"{response.status}: {response.read(500).decode()}")
        for line in response:
            if line.startswith(b"data: {"):
                yield time.perf_counter(), json.loads(line[6:])
    except (OSError, HTTPException, ValueError) as error:
        raise ServerFailed(f"the answer broke off: {error!r}") from error
    finally:
        connection.close()


def read_reply(begun: float, arriving: Iterator[tuple[float, dict[str, Any]]]) -> Reply:
    """The answer that these chunks make up, sent for at `begun`.

    llama-server puts the last timings beside the usage, specx beside the reason it ended.
    """
    pieces: list[tuple[float, int, str]] = []
    usage: dict[str, Any] = {}
    timings: dict[str, Any] = {}
    for at, chunk in arriving:
        if "error" in chunk:
            raise ServerFailed(f"the answer ended with an error: {chunk['error']}")
        timings = chunk.get("timings") or timings
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            if text := choice["delta"].get("content"):
                pieces.append((at, chunk.get("timings", {}).get("predicted_n", 0), text))
    if not (pieces and usage and timings):
        raise ServerFailed("the answer has no text, no usage or no timings")
    (first, n_first, _), (last, n_last, _) = pieces[0], pieces[-1]
    return Reply(
        text="".join(text for _, _, text in pieces),
        n_prompt=usage["prompt_tokens"],
        n_cached=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        n_tokens=usage["completion_tokens"],
        first_s=first - begun,
        tok_s=timings["predicted_per_second"],
        wall_tok_s=(n_last - n_first) / (last - first) if last > first else None,
        drafted=timings.get("draft_n", 0),
        accepted=timings.get("draft_n_accepted", 0),
    )
