"""Converts token bytes to text as they arrive: whole characters, cut before a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["TextStream", "visible"]

CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
CONTROLS |= {127: "\u2421"} | dict.fromkeys(range(0x80, 0xA0), "\ufffd")
CONTROLS |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")  # lone surrogates are not text


def visible(text: str) -> str:
    """`text` with control characters as symbols, so that it cannot control a terminal or a page."""
    return text.translate(CONTROLS)


class TextStream:
    """Releases text as soon as it is certain: complete characters that cannot begin a stop string.

    Parameters
    ----------
    stops
        Strings that end the text; no part of one is ever released.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stopped = False
        """True once a stop string was found."""
        self._stops = [stop for stop in stops if stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def push(self, data: bytes) -> str:
        """Take a token's bytes; return the text that has become certain."""
        return self._release(self._decoder.decode(data))

    def finish(self) -> str:
        """The rest of the text, at its end; an incomplete character becomes U+FFFD."""
        rest = self._release(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return rest

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        self._held += text
        cut = min((at for stop in self._stops if (at := self._held.find(stop)) >= 0), default=-1)
        if cut >= 0:
            self.stopped = True
        else:
            cut = len(self._held) - self._begun()
        released, self._held = self._held[:cut], "" if self.stopped else self._held[cut:]
        return released

    def _begun(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0
