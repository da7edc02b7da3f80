"""The commands of a chat, which begin with a slash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specx.cli.chat_output import statistics
from specx.cli.chat_talk import Chat, begin
from specx.errors import UsageError
from specx.output import OutputFile
from specx.records.chat import read_chat, write_chat
from specx.records.kinds import require_kind

__all__ = ["run_command"]


def run_command(chat: Chat, text: str) -> bool:
    """Obey the command in `text`; False if it ends the chat.

    Raises
    ------
    UsageError
        If there is no such command, or it cannot be obeyed; nothing has changed then.
    """
    name, _, rest = text[1:].partition(" ")
    name, rest = name.strip(), rest.strip()
    if name == "exit":
        return False
    if name not in COMMANDS:
        raise UsageError(
            f"unknown command '/{name[:40]}'; /help lists them; a message that begins "
            "with a slash is typed with two: //"
        )
    obey, takes, _words = COMMANDS[name]
    if rest and not takes:
        raise UsageError(f"/{name} takes nothing after it; leave '{rest[:40]}' out")
    obey(chat, rest)
    return True


def _help(chat: Chat, rest: str) -> None:
    width = max(len(f"/{name} {takes}") for name, (_, takes, _) in COMMANDS.items())
    for name, (_, takes, words) in COMMANDS.items():
        chat.note(f"{f'/{name} {takes}':{width}}  {words}")
    chat.note(f"{'/exit':{width}}  leave, as Ctrl-D does")
    chat.note("Enter sends; Alt-Enter, or a backslash before Enter, begins a new line.")
    chat.note("Ctrl-C ends an answer. A message that begins with a slash is typed with two: //")


def _reset(chat: Chat, rest: str) -> None:
    chat.conversation.reset()
    chat.note("a new conversation begins; system message and settings stay")


def _undo(chat: Chat, rest: str) -> None:
    chat.note(f"took back {begin(chat.conversation.undo().question)} and its answer")


def _regen(chat: Chat, rest: str) -> None:
    turn = chat.conversation.undo()
    seed = chat.settings.of(chat.conversation.n_asked).seed
    chat.note(f"another answer, with seed {seed}")
    try:
        chat.ask(turn.question)
    except BaseException:
        chat.conversation.add(turn)
        raise


def _system(chat: Chat, text: str) -> None:
    if not text:
        chat.note(f"system message: {chat.conversation.system or 'none'}")
        return
    if chat.encoding.raw:
        raise UsageError("a system message needs a chat template, and this chat has none")
    chat.conversation.system = None if text == "off" else text
    chat.note("system message removed" if text == "off" else "system message changed")


def _set(chat: Chat, text: str) -> None:
    name, _, value = text.partition(" ")
    if not name:
        chat.note(chat.settings.shown())
        return
    if not value.strip():
        raise UsageError(f"/set {name} lacks a value; /set temp 0.3 sets one, /set shows all")
    if chat.settings.change(name, value.strip()) == "seed":
        chat.conversation.n_asked = 0  # it is the next answer's
    chat.note(chat.settings.shown())


def _stats(chat: Chat, rest: str) -> None:
    for line in statistics(chat.results, (chat.n_used(), chat.n_ctx)):
        chat.note(line)
    turns = chat.conversation.turns
    if turns and turns[-1].stopped == "interrupted":
        chat.note("last      interrupted; the part that was said is the answer")
    chat.note(f"settings  {chat.settings.shown()}")


def _save(chat: Chat, text: str) -> None:
    path = _path("save", text)
    remedy = "name another file"
    require_kind(path, "chat", "/save", remedy=remedy)
    known = chat.file is not None and path.resolve() == chat.file.resolve()
    if path.exists() and path.stat().st_size and not known:
        agreed = chat.source.interactive and chat.source.agrees(
            f"{path} holds another chat; overwrite it?"
        )
        if not agreed:
            raise UsageError(f"/save {path} would overwrite another chat; {remedy}")
    OutputFile(path, "/save").write(write_chat(chat.saved()))
    chat.file = path
    chat.note(f"saved {path}")


def _load(chat: Chat, text: str) -> None:
    path = _path("load", text)
    chat.restore(read_chat(path), path)


def _path(command: str, text: str) -> Path:
    if not text:
        raise UsageError(f"/{command} needs a file; /{command} chat.json names one")
    return Path(text).expanduser()


COMMANDS: dict[str, tuple[Callable[[Chat, str], None], str, str]] = {
    "help": (_help, "", "show this list"),
    "reset": (_reset, "", "begin a new conversation"),
    "undo": (_undo, "", "take back the last question and its answer"),
    "regen": (_regen, "", "another answer to the last question, with the next seed"),
    "system": (_system, "[TEXT]", "show or change the system message; off removes it"),
    "set": (_set, "[NAME VALUE]", "show or change settings: temp, top-p, gamma, seed, n, ..."),
    "stats": (_stats, "", "figures of this chat, and its settings"),
    "save": (_save, "FILE", "write the chat to a file"),
    "load": (_load, "FILE", "continue a chat from a file, under its settings"),
}
"""What each does, what it takes, and its line of help."""
