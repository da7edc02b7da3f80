"""What is measured: conversations with several servers that take turns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from peers.record import Form, Record
from servers.client import Chat, Reply
from servers.program import opened

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "ALONE", "AUTO", "FIXED", "FORM", "ONE_CACHE", "PARKED", "THEIRS", "Conversation", "Plan",
    "alternate", "best_gamma", "compare", "read_texts",
]  # fmt: skip

FORM = Form("specx_servers", "scripts/bench_server.py", ("choice", "turns"))
TEXTS = Path(__file__).with_name("conversations.toml")

AUTO, FIXED = "specx serve, auto", "specx serve, fixed gamma"
THEIRS, ALONE = "llama-server", "llama-server, no drafter"
PARKED, ONE_CACHE = "specx serve", "specx serve --cache-ram 0"

LLAMA_GAMMA = 3
"""llama-server's own default."""
CHOICE_TOKENS = 48
CHOICE_TEXTS = ("code", "opinion")
"""Enough to find the best gamma, which is rarely a close call."""


@dataclass(frozen=True)
class Conversation:
    """The user's turns."""

    id: str
    turns: list[str]


def read_texts() -> list[Conversation]:
    """The conversations that come with this script."""
    found = tomllib.loads(TEXTS.read_text(encoding="utf-8"))["conversation"]
    return [Conversation(**each) for each in found]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The measurement to make."""

    commands: Callable[[str, int], Sequence[str]]
    """The command of a side, given its gamma."""
    sides: Sequence[str]
    conversations: Sequence[Conversation]
    temperatures: Sequence[float]
    top_p: float
    turns: int
    n: int
    """Tokens of an answer at most."""
    repetitions: int
    gammas: Sequence[int] = ()

    def request(self, side: str, temperature: float) -> dict[str, Any]:
        """Sampling settings: temperature first, then top-p, and no other filter.

        No seed: with one, specx may not learn the costs of rounds from the clock, and most
        clients give none.
        """
        order = {"samplers": ["temperature", "top_p"]} if side in (THEIRS, ALONE) else {}
        filters = {"temperature": temperature, "top_p": self.top_p, "top_k": 0, "min_p": 0}
        return {**filters, **order, "max_tokens": self.n}


def compare(plan: Plan, record: Record, say: Callable[[str], None]) -> None:
    """One conversation after the other, each with all servers turn by turn."""
    choose(plan, record, say)
    for temperature in plan.temperatures:
        gammas = {side: best_gamma(record, side, temperature) for side in (FIXED, THEIRS)}
        order = [(r, c) for r in range(plan.repetitions) for c in plan.conversations]
        missing = [
            (place, repetition, conversation)
            for place, (repetition, conversation) in enumerate(order)
            if not record.has("turns", temperature=temperature, repetition=repetition,
                              conversation=conversation.id)
        ]  # fmt: skip
        if not missing:
            continue
        with warm(plan, {side: gammas.get(side, 0) for side in plan.sides}) as ports:
            for place, repetition, conversation in missing:
                talk(plan, record, ports, [conversation], temperature, repetition, place)
                say(f"temperature {temperature:g}, repetition {repetition + 1}, {conversation.id}")


def alternate(plan: Plan, record: Record, say: Callable[[str], None]) -> None:
    """Two clients with a conversation each take turns."""
    clients = [each for each in plan.conversations if len(each.turns) >= plan.turns][:2]
    (temperature,) = plan.temperatures
    missing = [r for r in range(plan.repetitions) if not record.has("turns", repetition=r)]
    if not missing:
        return
    with warm(plan, dict.fromkeys(plan.sides, LLAMA_GAMMA)) as ports:
        for repetition in missing:
            talk(plan, record, ports, clients, temperature, repetition, repetition)
            say(f"repetition {repetition + 1}")


@contextmanager
def warm(plan: Plan, sides: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Ports of the sides with these gammas, running and warmed up within the block.

    A server's first answer also pays for reading its weights from the disk.
    """
    commands = {side: plan.commands(side, gamma) for side, gamma in sides.items()}
    with opened(commands) as ports:
        for side, port in ports.items():
            Chat(port, "Warm-up.", {**plan.request(side, 0.0), "max_tokens": 8}).say("Hello")
        yield ports


def choose(plan: Plan, record: Record, say: Callable[[str], None]) -> None:
    """Measure the speed of both sides that draft a fixed number, for each number."""
    texts = [each for each in plan.conversations if each.id in CHOICE_TEXTS]
    for gamma in plan.gammas:
        for side in (FIXED, THEIRS):
            if record.has("choice", side=side, gamma=gamma):
                continue
            found = []
            with warm(plan, {side: gamma}) as ports:
                for temperature in plan.temperatures:
                    request = {**plan.request(side, temperature), "max_tokens": CHOICE_TOKENS}
                    speeds = [
                        Chat(ports[side], "Choice.", request).say(each.turns[0]).tok_s
                        for each in texts
                    ]
                    found.append({"temperature": temperature, "tok_s": median(speeds)})
            record.extend("choice", [{"side": side, "gamma": gamma, **entry} for entry in found])
            say(f"{side}, gamma {gamma}: " + ", ".join(f"{e['tok_s']:.1f} tok/s" for e in found))


def best_gamma(record: Record, side: str, temperature: float) -> int:
    """The fastest gamma of a side."""
    tried = [
        e for e in record.data["choice"] if (e["side"], e["temperature"]) == (side, temperature)
    ]
    best: int = max(tried, key=lambda entry: entry["tok_s"])["gamma"]
    return best


def talk(
    plan: Plan,
    record: Record,
    ports: Mapping[str, int],
    conversations: Sequence[Conversation],
    temperature: float,
    repetition: int,
    first: int,
) -> None:
    """Hold these conversations with all servers, alternating by turn, and save them."""
    busy = psutil.cpu_percent(interval=1.0)  # the servers are idle: this is other programs
    entries = []
    for conversation, turn, replies in exchanges(
        plan, ports, conversations, temperature, repetition, first
    ):
        runs = {side: figures(reply) for side, reply in replies.items()}
        entries.append(
            {
                "temperature": temperature,
                "repetition": repetition,
                "conversation": conversation,
                "turn": turn,
                "busy": busy,
                "runs": runs,
            }
        )
    record.extend("turns", entries)


def exchanges(
    plan: Plan,
    ports: Mapping[str, int],
    conversations: Sequence[Conversation],
    temperature: float,
    repetition: int,
    first: int,
) -> Iterator[tuple[str, int, dict[str, Reply]]]:
    """(conversation, turn, replies by side), a different side first each time.

    The system message is new, so that no server has the conversation in memory from before.
    """
    chats = {
        (each.id, side): Chat(
            port, system(each.id, temperature, repetition), plan.request(side, temperature)
        )
        for each in conversations
        for side, port in ports.items()
    }
    sides = list(ports)
    for turn in range(plan.turns):
        for place, conversation in enumerate(conversations):
            start = (first + turn + place) % len(sides)
            yield (
                conversation.id,
                turn,
                {
                    side: chats[conversation.id, side].say(conversation.turns[turn])
                    for side in [*sides[start:], *sides[:start]]
                },
            )


def system(conversation: str, temperature: float, repetition: int) -> str:
    """A system message that no other conversation of the measurement has."""
    return f"Notes {conversation}-{temperature:g}-{repetition}. You are a helpful assistant."


def figures(reply: Reply) -> dict[str, Any]:
    """What the record keeps of a reply."""
    return {name: value for name, value in asdict(reply).items() if name != "text"}
