"""Random streams: repeatable, and apart from each other."""

from __future__ import annotations

import numpy as np
import pytest

from specx.core.streams import Streams, draw_seed
from specx.errors import UsageError


def test_a_stream_repeats_and_others_differ() -> None:
    streams, again = Streams(5), Streams(5)
    first = streams.accepting(10).random(4)
    assert (first == again.accepting(10).random(4)).all()
    others = [
        streams.drafting(10), streams.emitting(10), streams.accepting(11), Streams(6).accepting(10)
    ]  # fmt: skip
    assert all((first != other.random(4)).any() for other in others)


def test_neighbouring_streams_do_not_overlap() -> None:
    streams = Streams(1)
    numbers = [x for length in range(200) for x in streams.emitting(length).random(50)]
    assert len(set(numbers)) == len(numbers)
    correlation = np.corrcoef(
        np.reshape(numbers, (200, 50))[:-1, 0], np.reshape(numbers, (200, 50))[1:, 0]
    )
    assert abs(correlation[0, 1]) < 0.35  # 5 sigma for 199 pairs


def test_large_seeds_count_in_full() -> None:
    high, low = Streams(2**63 + 1), Streams(1)
    assert high.drafting(0).random() != low.drafting(0).random()


def test_drawn_seeds_differ() -> None:
    assert len({draw_seed() for _ in range(20)}) == 20


@pytest.mark.parametrize("seed", [-1, 2**128, 1.5, "1", None, True])
def test_what_is_no_seed_is_refused_by_name(seed: object) -> None:
    with pytest.raises(UsageError, match=f"seed is {seed!r}"):
        Streams(seed)  # type: ignore[arg-type]


def test_a_seed_may_be_numpys() -> None:
    assert Streams(np.uint64(5)).drafting(0).random() == Streams(5).drafting(0).random()
