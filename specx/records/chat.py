"""A saved chat: system message, messages, settings and model, as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from specx.codec import Count, Gamma, Number, convert, read_json, shortened, to_json
from specx.errors import UsageError, whole_number
from specx.session.conversation import Conversation, Turn
from specx.session.decoding import StopReason

__all__ = ["ChatModel", "ChatSettings", "SavedChat", "read_chat", "write_chat"]

FORMAT = 1
MOST_SEED = 2**64 - 1
"""As on the command line; later answers count up from it."""

Limit: TypeAlias = Annotated[int, Meta(ge=1, le=2**53)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
REMEDY = "/save FILE in specx chat writes a chat"


@dataclass(frozen=True, kw_only=True)
class ChatSettings:
    """The settings that ``/set`` changes, under the names of the command line's parameters."""

    temperature: Number
    top_k: Count
    top_p: Number
    min_p: Number
    gamma: Gamma | Literal["auto"] | None
    """None for the default, which depends on the models."""
    rule: str
    predict: Limit | None
    """Maximum number of tokens per answer."""
    draft_temperature: Number | None = None
    draft_top_k: Count | None = None
    draft_top_p: Number | None = None
    entropy_stop: Share | None = None
    draft_p_min: Share | None = None


@dataclass(frozen=True, kw_only=True)
class ChatModel:
    """The verifier that wrote the answers."""

    name: str
    sha256: str | None = None
    """None for a file of gigabytes, which is not hashed."""

    def differs(self, other: ChatModel) -> bool:
        """True if `other` is known to be another model."""
        hashes = self.sha256, other.sha256
        return self.name != other.name if None in hashes else hashes[0] != hashes[1]


@dataclass(frozen=True, kw_only=True)
class SavedChat:
    """A conversation with its settings."""

    conversation: Conversation
    settings: ChatSettings
    seed: int
    """The seed of the first answer; the nth uses seed + n - 1."""
    model: ChatModel


@dataclass(frozen=True, kw_only=True)
class _Message:
    role: Literal["user", "assistant"]
    content: str
    thought: str = ""
    stopped: StopReason | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class _File:
    specx_chat: int
    model: ChatModel
    settings: ChatSettings
    seed: int
    n_asked: Count
    system: str | None
    messages: list[_Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        whole_number("seed", self.seed, 0, MOST_SEED)
        for place, message in enumerate(self.messages):
            wanted = ("user", "assistant")[place % 2]
            if message.role != wanted:
                raise UsageError(f"messages[{place}] is of role {message.role}, not {wanted}")
        if len(self.messages) % 2:
            raise UsageError("the last message has no answer")


def write_chat(chat: SavedChat) -> str:
    """The content of a file for `chat`."""
    talk = chat.conversation
    messages: list[dict[str, Any]] = []
    for turn in talk.turns:
        told = {"thought": turn.thought, "stopped": turn.stopped, "seed": turn.seed}
        messages.append({"role": "user", "content": turn.question})
        messages.append({"role": "assistant", "content": turn.answer, **told})
    record = {
        "specx_chat": FORMAT,
        "model": asdict(chat.model),
        "settings": asdict(chat.settings),
        "seed": chat.seed,
        "n_asked": talk.n_asked,
        "system": talk.system,
        "messages": messages,
    }
    return to_json(record, indent=1) + "\n"


def read_chat(path: Path) -> SavedChat:
    """Read a chat that `write_chat` wrote.

    Raises
    ------
    UsageError
        If the file cannot be read or is not such a file; the message names the field.
    """
    record = read_json(path, "the chat", REMEDY)
    if not isinstance(record, dict) or "specx_chat" not in record:
        raise UsageError(f"{path} is not a saved chat; {REMEDY}")
    if record["specx_chat"] != FORMAT:
        shown = shortened(record["specx_chat"])
        raise UsageError(f"{path} has format {shown}; this specx reads {FORMAT}")
    found = convert(record, _File, str(path), REMEDY)
    pairs = zip(found.messages[::2], found.messages[1::2], strict=True)
    turns = [
        Turn(
            question=question.content,
            answer=answer.content,
            thought=answer.thought,
            stopped=answer.stopped,
            seed=answer.seed,
        )
        for question, answer in pairs
    ]
    return SavedChat(
        conversation=Conversation(found.system, turns, found.n_asked),
        settings=found.settings,
        seed=found.seed,
        model=found.model,
    )
