"""Counts and rates of a run, from rounds written down by hand."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

from specx.core.rules import Verdict
from specx.drafters.base import Draft
from specx.session.decoding import Round, Times
from specx.session.tally import Tally, merged


def decided(proposed: int, accepted: int, emitted: int | None = None) -> Round:
    n_emitted = accepted + 1 if emitted is None else emitted
    return Round(
        length=1,
        draft=Draft(ids=[0] * proposed),
        target=[],
        verdict=Verdict((0,) * accepted, 0),
        expected={"token": 0.5 * proposed, "block": 0.75 * proposed},
        emitted=[0] * n_emitted,
        pieces=[""] * n_emitted,
        uniforms=np.zeros(proposed),
        emitting=0.0,
        times=Times(draft=0.25, verify=1.0, core=0.125, rollback=0.5),
    )


def tally(*rounds: tuple[int, ...], total: float = 0.0) -> Tally:
    found = Tally(total=total)
    for each in rounds:
        found.add(decided(*each))
    return found


def test_a_token_is_tested_where_all_before_it_were_accepted() -> None:
    found = tally((3, 1), (3, 3), (3, 0), (0, 0))
    assert (found.rounds, found.proposed, found.tested, found.accepted) == (4, 9, 6, 4)
    assert found.by_position == [[3, 2], [2, 1], [1, 1]]
    assert found.alpha_by_position == [2 / 3, 1 / 2, 1]
    assert (found.alpha, found.kept, found.tau) == (4 / 6, 4 / 9, 2)


def test_positions_count_what_was_tested_and_accepted_in_all() -> None:
    found = tally((8, 5), (2, 2), (4, 0), (1, 1), (8, 8))
    assert [sum(counts) for counts in zip(*found.by_position, strict=True)] == [
        found.tested, found.accepted]  # fmt: skip


def test_rounds_are_counted_by_the_tokens_they_accepted() -> None:
    assert tally((3, 1), (3, 3), (3, 0), (0, 0), (1, 1)).lengths == {0: 2, 1: 2, 3: 1}


@pytest.mark.parametrize(
    ("rounds", "after_full"),
    [
        ([(2, 2), (2, 2), (2, 1), (2, 2)], 2),
        ([(2, 2), (2, 1), (2, 1)], 1),
        ([(0, 0), (0, 0)], 0),  # nothing was drafted, so the drafter holds all but the last token
        ([(2, 2)], 0),
    ],
)
def test_a_round_follows_a_full_acceptance_where_all_that_was_proposed_stayed(
    rounds: list[tuple[int, int]], after_full: int
) -> None:
    assert tally(*rounds).after_full == after_full


def test_a_round_that_a_stop_cut_counts_as_decided_and_writes_less() -> None:
    found = tally((4, 3, 2), total=0.5)
    assert (found.accepted, found.n_tokens, found.tau, found.tok_s) == (3, 2, 4, 4)


def test_what_never_happened_has_no_rate() -> None:
    nothing = Tally()
    assert (nothing.alpha, nothing.kept, nothing.tau, nothing.tok_s) == (None,) * 4
    assert nothing.expected_a_round() is None
    assert nothing.alpha_by_position == []
    assert tally((0, 0)).expected_a_round() is None


def test_expected_acceptance_is_a_mean_over_rounds() -> None:
    assert tally((4, 0), (2, 1)).expected_a_round() == {"token": 1.5, "block": 2.25}


def test_time_is_summed_by_part_and_the_rest_is_other() -> None:
    assert tally((1, 0), (1, 0), total=4.0).time() == {
        "draft": 0.5, "verify": 2.0, "core": 0.25, "rollback": 1.0, "other": 0.25, "total": 4.0,
    }  # fmt: skip


def test_generations_add_up() -> None:
    first, second = [(3, 1), (4, 4, 2)], [(2, 0), (1, 1), (0, 0)]
    both = merged([tally(*first, total=2.0), tally(*second, total=3.0)])
    once = tally(*first, *second, total=5.0)
    # The first generation ends with a full acceptance; the second begins with a fresh drafter.
    assert (both.after_full, once.after_full) == (1, 2)
    once.after_full = both.after_full
    assert both == once


def test_a_merger_leaves_its_parts_alone() -> None:
    parts = [tally((3, 3)), tally((1, 0))]
    before = deepcopy(parts)
    whole = merged(parts)
    whole.add(decided(4, 2))
    assert parts == before
    assert whole.by_position == [[3, 2], [2, 2], [2, 1]]


def test_of_no_generation_nothing_is_merged() -> None:
    assert merged([]) == Tally()
    alone = tally((3, 2), total=1.0)
    assert merged([alone]) == alone
