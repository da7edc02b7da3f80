"""The script that switches parts of `--gamma auto` off: every part exists, and luck is shared."""

from __future__ import annotations

from unittest.mock import patch

import pytest

import ablate_auto
from ablate_auto import PARTS, cases, seconds_without, summary

FEW = [case for group in ("recorded", "lookup") for case in cases() if case.group == group][::16]


@pytest.mark.parametrize("part", PARTS)
def test_what_is_switched_off_exists_and_is_on(part: str) -> None:
    for thing, name, value in PARTS[part]:
        assert getattr(thing, name) != value


def test_runs_meet_the_same_luck_and_parts_are_back_on_afterwards() -> None:
    with patch.object(ablate_auto, "cases", lambda: FEW):
        whole = seconds_without("")
        assert seconds_without("costs learned") != whole
        assert seconds_without("lookup: labels for free")[:-1] == whole[:-1]
        assert seconds_without("") == whole


def test_a_group_is_summed_up_by_its_mean_and_worst_case() -> None:
    with patch.object(ablate_auto, "cases", lambda: FEW[:2]):
        (found,) = summary([1.0, 1.2]).values()
    assert (found["mean"], found["error"], found["worst"]) == (1.1, 0.1, 1.2)
    assert found["worst_case"] == FEW[1].name
