"""Lookup drafts: what the index finds, and what is proposed."""

from __future__ import annotations

import numpy as np
import pytest

from specx.drafters import lookup
from specx.drafters.base import Outlook
from specx.drafters.lookup import MOST_PROPOSALS, SIZES, LookupDrafter, LookupIndex, Match

RNG = np.random.default_rng(0)
LEAST = SIZES[-1]


def proposed(tokens: list[int], limit: int = 4, **options: object) -> list[int]:
    return LookupDrafter(**options).propose(tokens, limit, RNG).ids  # type: ignore[arg-type]


def test_the_text_is_continued_as_it_went_on_before() -> None:
    assert proposed([1, 2, 3, 4, 5, 6, 9, 1, 2, 3]) == [4, 5, 6, 9]


def test_nothing_is_proposed_after_what_never_stood_before() -> None:
    assert proposed([1, 2, 3, 4, 5, 6, 7]) == []
    assert proposed([1, 2, 4, 9, 1, 2]) == []  # a match of two is no match


def test_the_longest_match_decides_and_of_equal_ones_the_most_recent() -> None:
    run = [*range(10, 16)]
    text = [*run, 50, *run[1:], 51, 99, *run]  # six tokens match at 50, five at 51
    assert proposed(text, 1) == [50]
    assert proposed([*run, 50, *run, 51, 99, *run], 1) == [51]


def test_what_reaches_the_end_of_the_text_goes_on_with_itself() -> None:
    assert proposed([7, 1, 2, 1, 2, 1, 2], 7) == [1, 2, 1, 2, 1, 2, 1]


def test_each_token_is_certain_of_what_it_was_drawn_from() -> None:
    draft = LookupDrafter().propose([1, 2, 3, 4, 5, 1, 2, 3], 2, RNG)
    assert [row.prob(token) for row, token in zip(draft.distributions, draft.ids, strict=True)] == [
        1,
        1,
    ]
    assert all(len(row.probs) == 1 for row in draft.distributions)


def test_at_most_32_are_proposed() -> None:
    text = [*range(100), 0, 1, 2]
    assert proposed(text, 1000) == [*range(3, 3 + MOST_PROPOSALS)]
    assert proposed(text, 0) == []


def test_what_the_verifier_cannot_emit_is_not_proposed() -> None:
    text = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    assert proposed(text, masked=[6]) == [4, 5]
    assert LookupDrafter(masked=[6]).propose(text, 4, RNG).ended == lookup.MASKED
    drafter = LookupDrafter(masked=[4])
    assert drafter.outlook(text) == Outlook(limit=0, bound=lookup.MASKED)
    assert drafter.propose(text, 4, RNG).ids == []


def test_nothing_follows_an_end_token() -> None:
    text, drafter = [1, 2, 3, 4, 5, 6, 1, 2, 3], LookupDrafter(eog_ids=frozenset({5}))
    drafts = [drafter.propose(text, limit, RNG) for limit in (2, 3)]
    assert [draft.ids for draft in drafts] == [[4, 5], [4, 5]]
    assert [draft.ended for draft in drafts] == ["", "end token"]


def test_a_text_without_a_match_says_so() -> None:
    assert LookupDrafter().outlook([1, 2, 3, 4]) == Outlook(limit=0, bound="no match")


def test_the_outlook_names_the_first_token_and_classes_proposals_by_length_of_match() -> None:
    text = [9, *range(20), 8, *range(20)]
    outlook = LookupDrafter().outlook(text)
    assert (outlook.guess, outlook.limit) == (8, MOST_PROPOSALS)
    # A match of 20, 21, ... tokens: the classes begin at 16, 24 and 32.
    assert [*outlook.classes] == [5] * 4 + [6] * 8 + [7] * 20


def test_every_match_falls_into_a_class_of_its_own_length() -> None:
    assert len(lookup.PRIOR) == len(lookup.LENGTHS)
    assert len(lookup.CLASSES) == lookup.LONGEST + MOST_PROPOSALS
    for length, place in enumerate(lookup.CLASSES):
        assert length >= lookup.LENGTHS[place] or length < LEAST
        assert place == len(lookup.PRIOR) - 1 or length < lookup.LENGTHS[place + 1]


@pytest.mark.parametrize("seed", range(5))
def test_an_index_that_grew_equals_a_new_one_and_a_plain_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 3, 300).tolist()
    grown = LookupIndex()
    for end in range(1, len(tokens)):
        found = grown.find(tokens[:end])
        assert found == searched(tokens[:end]) == grown.find(tokens[:end])
        if end % 50 == 0:
            assert LookupIndex().find(tokens[:end]) == found


def searched(tokens: list[int]) -> Match | None:
    """By trying every size and every place."""
    end = len(tokens)
    for size in SIZES:
        for at in range(end - 1, size - 1, -1):
            if tokens[at - size : at] == tokens[end - size : end]:
                length = size
                while length < min(at, lookup.LONGEST) and (
                    tokens[at - 1 - length] == tokens[end - 1 - length]
                ):
                    length += 1
                return Match(at, length)
    return None


def test_a_truncated_text_is_forgotten() -> None:
    drafter = LookupDrafter()
    assert drafter.propose([1, 2, 3, 4, 5, 1, 2, 3], 1, RNG).ids == [4]
    drafter.truncate(drafter.n_past)  # as the loop does
    assert drafter.n_past == 8
    drafter.truncate(2)
    assert drafter.n_past == 0
    assert drafter.propose([1, 2, 9, 9, 9, 1, 2, 3], 1, RNG).ids == []


def test_runs_that_share_a_key_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_key", lambda tokens, end, size: 0)
    assert proposed([1, 2, 3, 4, 5, 6, 7, 8]) == []
