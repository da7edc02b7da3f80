"""Streamed text: whole characters, stop strings that span pieces, nothing shown early."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specx.session.text import TextStream


def pieces(text: TextStream, *data: bytes) -> list[str]:
    return [text.push(part) for part in data]


def test_characters_come_out_whole() -> None:
    data = "a😀é".encode()
    found = pieces(TextStream(), *(data[i : i + 1] for i in range(len(data))))
    assert [piece for piece in found if piece] == ["a", "😀", "é"]


def test_an_incomplete_character_at_the_end_is_replaced() -> None:
    text = TextStream()
    assert (text.push(b"ok\xf0\x9f"), text.finish()) == ("ok", "\ufffd")


def test_what_may_begin_a_stop_string_is_held_back() -> None:
    text = TextStream(["END", "E-"])
    assert pieces(text, b"the E", b"N", b"d of E", b"-") == ["the ", "", "ENd of ", ""]
    assert text.stopped
    assert (text.push(b"more"), text.finish()) == ("", "")


def test_held_text_is_released_at_the_end() -> None:
    text = TextStream(["stop"])
    assert (text.push(b"st"), text.finish()) == ("", "st")


def test_the_first_stop_string_in_the_text_counts() -> None:
    text = TextStream(["later", "now"])
    assert text.push(b"not now, later") == "not "


@given(st.text("abE", max_size=30), st.lists(st.text("abE", min_size=1, max_size=4), max_size=3),
       st.integers(1, 5))  # fmt: skip
def test_any_cutting_gives_the_text_up_to_the_first_stop(
    whole: str, stops: list[str], size: int
) -> None:
    text = TextStream(stops)
    data = whole.encode()
    shown = "".join(text.push(data[i : i + size]) for i in range(0, len(data), size))
    ends = [whole.find(stop) for stop in stops if stop in whole]
    found = shown + text.finish()
    assert whole.startswith(found)
    assert text.stopped == bool(ends)
    assert len(found) >= min(ends, default=len(whole))
    assert not any(stop in found for stop in stops)
