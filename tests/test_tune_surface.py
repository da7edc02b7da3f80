"""The surface of speed-ups, what is recommended on it, and what-if: pure functions."""

from __future__ import annotations

import dataclasses

import pytest
from worlds import F16, PAIRS, Q4_K_M, curve, profile

from specx.errors import UsageError
from specx.schedule.costs.curve import Profile, uniform_speedup
from specx.tune.recommend import Candidate, by_kind, recommend, uncertainty
from specx.tune.surface import (
    GAMMAS,
    Labels,
    Overheads,
    Sample,
    Text,
    agreement,
    best_place,
    lookup_surface,
    merged_labels,
    model_surface,
    rates_by_kind,
)
from specx.tune.whatif import GRAMMAR, parse_what_if

NONE = Overheads()
FLAT = Profile(verifier=curve([1, 1], [1, 33]))


def surface_of(costs: Profile, alpha: float) -> Candidate:
    surface = model_surface(costs, {"code": [alpha] * GAMMAS[-1]}, NONE)
    return Candidate(name="d.gguf", option="-md d.gguf", profile=costs, surface=surface)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("alpha", [0.3, 0.8, 0.95])
def test_the_surface_is_the_cost_model_s(name: str, alpha: float) -> None:
    costs = profile(name)
    surface = model_surface(costs, {"code": [alpha] * GAMMAS[-1]}, NONE)
    expected = [uniform_speedup(costs, alpha, gamma) for gamma in GAMMAS]
    assert surface.speedups["code"] == pytest.approx(expected)


@pytest.mark.parametrize("name", PAIRS)
def test_at_the_rate_from_which_a_gamma_pays_it_gains_nothing(name: str) -> None:
    costs = profile(name)
    surface = model_surface(costs, {"code": [0.5] * GAMMAS[-1]}, NONE)
    for gamma, needed in zip(surface.gammas, surface.needed, strict=True):
        if needed is not None and needed > 0:
            assert uniform_speedup(costs, needed, gamma) == pytest.approx(1, abs=1e-6)
        elif needed is None:
            assert uniform_speedup(costs, 1, gamma) <= 1


def test_overheads_of_a_round_count_on_both_sides() -> None:
    """With 1 s of other work, two tokens take 2 + 1 s instead of 2 (1 + 1)."""
    steep = Profile(verifier=curve([1, 2]))
    surface = model_surface(steep, {"code": [1.0] * 16}, Overheads(other=1.0), [1])
    assert surface.speedups["code"][0] == pytest.approx(4 / 3)
    slow = model_surface(FLAT, {"code": [1.0] * 16}, Overheads(core=1.0, rollback=2.0), [1])
    assert slow.speedups["code"][0] == pytest.approx(2 * 2 / (1 + 3 + 2))


def test_over_all_kinds_counts_the_geometric_mean() -> None:
    surface = model_surface(FLAT, {"code": [1.0] * 16, "prose": [0.0] * 16}, NONE, [3])
    assert surface.speedups == {"code": (4.0,), "prose": (1.0,)}
    assert surface.overall[0] == pytest.approx(2.0)


# Acceptance


def test_rates_are_ratios_of_survival_and_few_labels_lean_on_the_others() -> None:
    many = Labels((1000.0, 900.0), (900.0, 450.0))
    rates = rates_by_kind({"code": [many]}, 4)["code"]
    assert list(rates[:2]) == pytest.approx([0.9, 0.5], abs=0.005)
    assert rates[2] == rates[3] == pytest.approx(0.5, abs=0.005)  # not drafted
    few = rates_by_kind({"code": [many], "prose": [Labels((1.0,), (0.0,))]}, 1)
    assert 0.4 < few["prose"][0] < 0.7  # one failure of a kind says little


def test_labels_add_up_also_where_drafts_were_of_different_length() -> None:
    both = merged_labels([Labels((2.0,), (1.0,)), Labels((3.0, 1.0), (1.0, 0.5))])
    assert both == Labels((5.0, 1.0), (2.0, 0.5))


# Lookup


def test_lookup_is_replayed_on_the_text() -> None:
    """A text of period 4: after the prompt's two periods every proposal is right."""
    text = Text("edit", [1, 2, 3, 4] * 6, 8)
    surface, _ = lookup_surface(FLAT, [text], NONE, [1, 3])
    # 16 tokens: 8 rounds of 2 at gamma 1, 4 rounds of 4 at gamma 3; a pass costs 1 whatever k is.
    assert surface.speedups["edit"] == (2.0, 4.0)


def test_lookup_pays_for_proposals_that_are_wrong() -> None:
    costs = Profile(verifier=curve([1, 2], [1, 2]))
    # "1 2 3" came before and was followed by 4; now 9 follows.
    text = Text("edit", [1, 2, 3, 4, 5, 1, 2, 3, 9, 8], 8)
    surface, _ = lookup_surface(costs, [text], NONE, [1])
    assert surface.speedups["edit"][0] == pytest.approx(2 * 1 / (2 + 1))


def test_lookup_that_pays_on_one_text_of_two_is_no_sure_thing() -> None:
    costs = Profile(verifier=curve([1, 1.5], [1, 2]))
    good, bad = [1, 2, 3, 4] * 6, [*range(30)]
    _, resampled = lookup_surface(costs, [Text("edit", good, 8)] * 2, NONE, [1])
    assert set(resampled) == {1}
    both = [Text("edit", good, 8), Text("edit", bad, 8)]
    _, resampled = lookup_surface(costs, both, NONE, [1])
    assert set(resampled) == {0, 1}


# Recommendation


def test_of_lengths_that_are_about_as_fast_the_shortest_is_chosen() -> None:
    assert best_place([1.0, 1.199, 1.2, 1.1]) == 1
    assert best_place([1.0, 1.15, 1.2, 1.1]) == 2


def test_known_curves_get_the_recommendation_that_the_project_measured() -> None:
    """Q4_K_M never pays with a drafter of .57; F16 does, at gamma 2 to 4 of a good one."""
    never = surface_of(Profile(verifier=Q4_K_M, drafter=curve([0.57])), 0.9)
    assert not never.pays
    words = recommend([never])[0]
    assert words.startswith("Do not speculate with d.gguf: a pass of 4 costs 2.5 single ones")
    pays = surface_of(Profile(verifier=F16, drafter=curve([0.23])), 0.8)
    assert pays.pays
    assert 2 <= pays.gamma <= 5
    assert recommend([pays])[0].startswith(f"Use -md d.gguf --gamma {pays.gamma}: expect 1.")


def test_what_would_change_a_refusal_is_said() -> None:
    refused = surface_of(Profile(verifier=Q4_K_M, drafter=curve([0.57])), 0.85)
    f16 = Profile(verifier=F16, drafter=curve([0.23]))
    words = recommend([dataclasses.replace(refused, f16=f16)])
    assert any(line.startswith("An F16 verifier would change that") for line in words)
    hopeless = surface_of(Profile(verifier=Q4_K_M, drafter=curve([0.57])), 0.1)
    assert len(recommend([dataclasses.replace(hopeless, f16=f16)])) == 1


def test_a_kind_on_which_drafting_pays_is_named_though_nothing_pays_over_all() -> None:
    costs = Profile(verifier=F16, drafter=curve([0.5]))
    surface = model_surface(costs, {"code": [0.9] * 16, "prose": [0.05] * 16}, NONE)
    both = Candidate(name="d.gguf", option="-md d.gguf", profile=costs, surface=surface)
    assert not both.pays
    line = next(line for line in recommend([both]) if line.startswith("It would pay on"))
    assert "code" in line
    assert "prose" not in line


def test_the_fastest_way_to_draft_comes_first_and_the_others_are_ranked() -> None:
    good = surface_of(Profile(verifier=F16, drafter=curve([0.1])), 0.9)
    poor = dataclasses.replace(surface_of(FLAT, 0.2), name="poor.gguf")
    lines = recommend([poor, good])
    assert lines[0].startswith("Use -md d.gguf")
    assert lines[1].startswith("poor.gguf: 1.")


# Uncertainty


def test_a_gain_that_most_measurements_would_not_find_is_not_recommended() -> None:
    good = surface_of(Profile(verifier=F16, drafter=curve([0.1])), 0.9)
    place = good.place + 1
    assert dataclasses.replace(good, resampled=[place] * 8 + [0] * 2).pays
    lucky = dataclasses.replace(good, resampled=[place] * 5 + [0] * 5)
    assert not lucky.pays
    assert recommend([lucky])[0].startswith("Do not speculate")


def samples(noise: float, n: int = 16) -> list[Sample]:
    """Generations whose passes vary by `noise` from one to the next, each after its own way."""
    f16 = Profile(verifier=F16, drafter=curve([0.23]))
    found = []
    for i in range(n):
        factor = {w: 1 + noise * ((i * 7 + w * 5) % 11 - 5) / 5 for w in range(1, 10)}
        found.append(
            Sample(
                kind="code",
                labels=Labels((12.0, 10.0, 8.0, 6.0), (10.0, 8.0, 6.0, 5.0)),
                seconds={"verifier": {w: [f16.verifier(w) * factor[w]] for w in factor}},
            )
        )
    return found


def test_a_quiet_machine_agrees_with_itself_and_a_noisy_one_is_called_so() -> None:
    costs = Profile(verifier=curve([F16(w) for w in range(1, 34)]), drafter=curve([0.23]))
    best = surface_of(costs, 0.8)
    quiet = agreement(costs, samples(0.0), NONE)
    assert set(quiet) == {best.place + 1}
    assert uncertainty(dataclasses.replace(best, resampled=quiet)) == []
    noisy = agreement(costs, samples(0.9, n=4), NONE)
    assert len(set(noisy)) > 1
    (line,) = uncertainty(dataclasses.replace(best, resampled=noisy))
    assert line.startswith("this machine is too noisy to tell ")


def test_another_seed_resamples_otherwise_and_the_same_one_alike() -> None:
    costs = Profile(verifier=curve([F16(w) for w in range(1, 34)]), drafter=curve([0.23]))
    noisy = samples(0.9, n=4)
    assert agreement(costs, noisy, NONE) == agreement(costs, noisy, NONE)
    assert agreement(costs, noisy, NONE) != agreement(costs, noisy, NONE, seed=1)


# What if


def test_what_if_is_the_formula_with_the_assumed_costs() -> None:
    asked = parse_what_if("draft=.1,verify-curve=1:10,2:20,3:22,alpha=.5")
    surface = asked.surface()
    assert asked.verify == {1: 1.0, 2: 2.0, 3: 2.2}  # in units of a plain step
    first, second = surface.speedups["alpha 0.5"][:2]
    assert first == pytest.approx(1.5 / 2.1)
    assert second == pytest.approx(1.75 / 2.4)
    assert by_kind(surface)[0].startswith("alpha 0.5: do not speculate")


def test_what_if_takes_kinds_and_several_rates_and_assumes_some_otherwise() -> None:
    start = "draft=0,verify-curve=1:1,8:2"
    assert parse_what_if(f"{start},alpha=code:.9,prose:.5").alphas == {"code": 0.9, "prose": 0.5}
    assert len(parse_what_if(f"{start},alpha=.5,.7").alphas) == 2
    assert len(parse_what_if(start).alphas) == 5
    assert parse_what_if(start).profile.drafter is None
    assert any("cost nothing" in line for line in parse_what_if(start).assumptions())


def test_the_published_apple_curve_pays_from_a_good_drafter_on_alone() -> None:
    """llama.cpp #10491, M1 Pro, 13B Q4_0: 21.24, 23.90, 25.05, 25.55 tok/s at widths 1 to 4."""
    curve = "1:1,2:1.78,3:2.54,4:3.33"
    asked = parse_what_if(f"draft=.12,verify-curve={curve},alpha=.7,.9")
    assert all("do not speculate" in line for line in by_kind(asked.surface())[:1])
    assert all(needed is None or needed > 0.85 for needed in asked.surface().needed[:3])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "belongs to no key"),
        ("draft=.1", "verify-curve is missing"),
        ("verify-curve=1:1,2:2", "draft is missing"),
        ("draft=.1,draft=.2,verify-curve=1:1,2:2", "draft is given twice"),
        ("draft=.1,.2,verify-curve=1:1,2:2", "draft takes one number"),
        ("draft=-1,verify-curve=1:1,2:2", '"-1" is no number'),
        ("draft=nan,verify-curve=1:1,2:2", '"nan" is no number'),
        ("draft=1e3,verify-curve=1:1,2:2", '"1e3" is no number'),
        ("draft=.1,verify-curve=2:2,3:3", "needs width 1"),
        ("draft=.1,verify-curve=1:1", "and one more"),
        ("draft=.1,verify-curve=1:1,1:2", "width 1 is given twice"),
        ("draft=.1,verify-curve=1:1,2:0", "cannot cost 0"),
        ("draft=.1,verify-curve=1:1,2", "is not WIDTH:COST"),
        ("draft=.1,verify-curve=1:1,99999:2", "is not WIDTH:COST"),
        ("draft=.1,verify-curve=1:1,2:2,alpha=1.5", "is no rate"),
        ("draft=.1,verify-curve=1:1,2:2,beta=1", 'unknown key "beta"'),
        ("draft=.1,verify-curve=1:1,2:2,alpha=\x1b[31m", "is no number"),
    ],
)
def test_other_assumptions_are_refused_with_the_part_and_an_example(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_what_if(text)
    assert reason in str(error.value)
    assert GRAMMAR in str(error.value)
    assert "\x1b" not in str(error.value)
