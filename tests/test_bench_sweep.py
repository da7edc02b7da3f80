"""Sweeps over toy tables: order, resumption, and figures that can be computed by hand.

Costs are multiples of 1/1024 s, so that sums on the virtual clock are exact.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from specx.bench import Arm, ArmRecord, Plan, Results, Run, results_record, run_sweep, summarise
from specx.bench.profiling import encode_prompt
from specx.bench.suites import Prompt
from specx.bench.sweep import WARM_UP_TOKENS, Bench
from specx.schedule import Costs
from specx.schedule.costs.curve import Profile
from specx.session.decoding import Round, Stop
from specx.session.generation import Generation, Observer
from specx.session.pair import Pair
from specx.session.result import Result
from specx.session.session import Rounds, Session
from specx_backends.toy import CLOCK, Toy, ToyTable

MS = 1 / 1024
WORDS = ("<s>", "a", "b", "c")
PROMPTS = [Prompt("p1", "k", "a"), Prompt("p2", "k", "bca"), Prompt("p3", "k", "cabca")]
T = [16 * MS, 17 * MS, 18 * MS, 19 * MS, 20 * MS]
T_DRAFT = [2 * MS, 3 * MS]


def certain(follows: str, costs: list[float], truncate: float = 0.0) -> ToyTable:
    """A table that is sure of its next letter: `follows` names those after a, b and c."""
    rows: dict[tuple[int, ...], list[float]] = {(): np.eye(4)[1].tolist()}
    rows |= {(i + 1,): np.eye(4)[WORDS.index(word)].tolist() for i, word in enumerate(follows)}
    return ToyTable(
        tokens=WORDS, rows=rows, bos="<s>", forward_cost=tuple(costs), truncate_cost=truncate
    )


def constant(row: list[float], costs: list[float]) -> ToyTable:
    """The same probabilities everywhere."""
    return ToyTable(tokens=WORDS, rows={(): row}, bos="<s>", forward_cost=tuple(costs))


VERIFIER = certain("bca", T)
WRONG_AFTER_C = certain("bcb", T_DRAFT)


def arm(gamma: int | Literal["auto"] = 0, temperature: float = 0.0, **more: Any) -> Arm:
    rule = "-" if gamma == 0 else "greedy" if temperature == 0 else "token"
    common = {"backend": "toy", "draft_backend": "toy", "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    record = {**common, "temperature": temperature, "gamma": gamma, "rule": rule, **more}
    return ArmRecord(**record).arm()


def plan(*arms: Arm, n: int = 12, repetitions: int = 2, **more: Any) -> Plan:
    return Plan(arms=arms, prompts=more.pop("prompts", PROMPTS), n=n, repetitions=repetitions,
                raw=True, **more)  # fmt: skip


def sweep(
    chosen: Plan,
    verifier: ToyTable,
    drafter: ToyTable | None,
    results: Results | None = None,
    *,
    loads: list[tuple[str, str]] | None = None,
    **more: Any,
) -> Results:
    @contextmanager
    def load(backend: str, draft_backend: str) -> Iterator[Pair]:
        if loads is not None:
            loads.append((backend, draft_backend))
        other = None if drafter is None else Toy(drafter, name="toy:d")
        with Pair(Toy(verifier, name="toy:v"), other) as pair:
            yield pair

    results = Results(n=chosen.n) if results is None else results
    run_sweep(chosen, load, results, **more)
    return results


def figures(results: Results, *arms: Arm) -> list[dict[str, Any]]:
    by_arm = dict(zip(results.runs, summarise(results), strict=True))
    return [by_arm[each] for each in arms]


def test_partial_acceptance_comes_out_as_by_hand() -> None:
    """After a: b and c are right, b is not, so a round of four proposals writes three tokens.

    Ten rounds write 30. The last may propose two only, all right: 2 t_d(1) + T(3) = 22 ms, and
    the nine before it 4 t_d(1) + T(5) = 28 ms each; 274 ms together, where plain takes 480.
    """
    arms = arm(), arm(4)
    results = sweep(plan(*arms, n=30, repetitions=1, prompts=PROMPTS[:1]), VERIFIER, WRONG_AFTER_C)
    plain, drafted = figures(results, *arms)
    assert plain["tok_s"] == 30 / (30 * T[0])
    assert drafted["tok_s"] == 30 / (274 * MS)
    assert drafted["speedup"] == drafted["speedup_low"] == pytest.approx(480 / 274)
    assert (drafted["alpha"], drafted["tau"]) == (20 / 29, 3)
    assert drafted["kept"] == 20 / (9 * 4 + 2)
    assert drafted["alpha_by_position"] == [1, 1, 0]
    assert drafted["accepted_lengths"] == {2: 10}
    # The formulas know no last round: 3 tokens for 28 ms against 16 ms each.
    assert drafted["predicted"] == pytest.approx(3 * 16 / 28)
    alpha, ratio = 20 / 29, 2 / 16
    textbook = (1 - alpha**5) / ((1 - alpha) * (4 * ratio + 1))
    assert drafted["predicted_textbook"] == pytest.approx(textbook)
    assert (plain["alpha"], plain["tau"], plain["speedup"], plain["predicted"]) == (
        None, 1, None, None)  # fmt: skip


def test_time_is_split_by_part_and_prefill_lies_apart() -> None:
    """Forgetting costs 1 ms a side in the nine rounds that reject, nothing in the last."""
    verifier, drafter = certain("bca", T, MS), certain("bcb", T_DRAFT, MS)
    chosen = plan(arm(), arm(4), n=30, repetitions=1, prompts=PROMPTS[1:2])
    (drafted,) = figures(sweep(chosen, verifier, drafter), arm(4))
    time = drafted["time"]
    assert time["draft"] == (9 * 4 + 2) * T_DRAFT[0]
    assert time["verify"] == 9 * T[4] + T[2]
    assert time["rollback"] == 9 * 2 * MS
    assert (time["core"], time["other"]) == (0, 0)
    assert time["total"] == time["draft"] + time["verify"] + time["rollback"]
    assert drafted["prefill_s"] == T[2] + (T_DRAFT[1] + MS)  # <s>, b, c; then a is the first fed
    assert drafted["tok_s"] == 30 / time["total"]
    assert drafted["predicted"] == pytest.approx(3 * 16 / (28 + 9 * 2 / 10))


def test_full_acceptance_is_predicted_exactly() -> None:
    """Every round but the first feeds the drafter two tokens: 2 t_d(1) + t_d(2) + T(4)."""
    arms = arm(), arm(3)
    results = sweep(plan(*arms, n=40), VERIFIER, certain("bca", T_DRAFT))
    plain, drafted = figures(results, *arms)
    seconds = 3 * 2 * MS + T[3] + 9 * (2 * 2 * MS + 3 * MS + T[3])
    assert (drafted["alpha"], drafted["kept"], drafted["tau"]) == (1, 1, 4)
    assert drafted["alpha_by_position"] == [1, 1, 1]
    assert [run.tally.after_full for run in results.runs[arms[1]]] == [9] * 6
    assert drafted["tok_s"] == 40 / seconds
    assert drafted["predicted"] == pytest.approx(drafted["tok_s"] / plain["tok_s"], rel=1e-12)
    assert drafted["predicted"] == pytest.approx(drafted["speedup"], rel=1e-12)
    assert drafted["predicted_textbook"] == pytest.approx(4 / (3 * 2 / 16 + 1))


def test_no_acceptance_costs_a_full_round_a_token() -> None:
    chosen = plan(arm(), arm(2), n=50)
    (drafted,) = figures(sweep(chosen, VERIFIER, certain("cab", T_DRAFT)), arm(2))
    assert (drafted["alpha"], drafted["tau"]) == (0, 1)
    assert drafted["alpha_by_position"] == [0]
    assert drafted["predicted"] == pytest.approx(16 / (2 * 2 + 18))
    assert drafted["speedup"] == pytest.approx(drafted["predicted"], rel=0.02)  # the last two
    assert drafted["predicted_textbook"] == pytest.approx(1 / (2 * 2 / 16 + 1))


def test_a_known_rate_of_acceptance_is_found_and_predicts() -> None:
    """Under the token rule alpha = sum min(P, Q) = 0.5 + 0.25, and each test is a coin of its own.

    About 3600 tests: their mean lies within 4.5 standard errors (0.033) but once in 150,000 seeds.
    """
    verifier = constant([0, 0.75, 0.25, 0], T)
    drafter = constant([0, 0.5, 0.5, 0], T_DRAFT)
    arms = arm(temperature=1.0), arm(4, temperature=1.0)
    results = sweep(plan(*arms, n=1000, repetitions=1), verifier, drafter)
    (drafted,) = figures(results, arms[1])
    assert drafted["alpha"] == pytest.approx(0.75, abs=0.033)
    assert drafted["expected_accepted"]["token"] == pytest.approx(
        sum(0.75**k for k in range(1, 5)), rel=0.03
    )
    ratio = sum(run.tally.n_tokens for run in results.runs[arms[1]]) / drafted["time"]["total"]
    assert drafted["predicted"] == pytest.approx(ratio * T[0], rel=0.01)


def test_the_profile_holds_the_tables_costs_for_the_widths_that_are_used() -> None:
    profile = sweep(plan(arm(), arm(3), arm(4), n=4), VERIFIER, WRONG_AFTER_C).profiles["toy"]
    assert profile.verifier.widths == (1, 2, 4, 5)
    assert profile.verifier.seconds == (T[0], T[1], T[3], T[4])
    assert profile.drafter is not None
    assert profile.drafter(2) == T_DRAFT[1]


Call = tuple[int | Literal["auto"], int, str, int]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What ran: gamma, repetition, prompt and limit of each generation."""
    made: list[Call] = []
    original = Bench.run

    def recorded(self: Bench, arm: Arm, repetition: int, prompt: Prompt, *, limit: int) -> Run:
        made.append((arm.gamma, repetition, prompt.id, limit))
        return original(self, arm, repetition, prompt, limit=limit)

    monkeypatch.setattr(Bench, "run", recorded)
    return made


def test_arms_take_turns_on_each_prompt_after_an_uncounted_warm_up(calls: list[Call]) -> None:
    results = sweep(plan(arm(), arm(2), arm(4)), VERIFIER, WRONG_AFTER_C)
    assert calls[:3] == [(gamma, 0, "p1", WARM_UP_TOKENS) for gamma in (0, 2, 4)]
    blocks = [calls[place : place + 3] for place in range(3, len(calls), 3)]
    assert [{call[1:] for call in block} for block in blocks] == [
        {(repetition, prompt.id, 12)} for repetition in range(2) for prompt in PROMPTS
    ]
    turns = [(0, 2, 4), (2, 4, 0), (4, 0, 2)]
    assert [tuple(call[0] for call in block) for block in blocks] == turns * 2
    assert [len(runs) for runs in results.runs.values()] == [6, 6, 6]
    assert results.complete


def test_arms_of_one_sampler_run_together(calls: list[Call]) -> None:
    arms = [arm(gamma, temperature) for temperature in (0.0, 1.0) for gamma in (0, 2)]
    sweep(plan(*arms, repetitions=1, prompts=PROMPTS[:1]), VERIFIER, WRONG_AFTER_C)
    assert [call[0] for call in calls] == [0, 2, 0, 2] * 2


def test_every_run_begins_with_empty_caches_and_knows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session of its own, whose models hold nothing when the first slice was fed."""
    original, sessions, reused = Session.rounds, [], []

    def rounds(self: Session, *args: Any, **more: Any) -> Rounds:
        sessions.append(self)
        return original(self, *args, **more)

    def fed(self: Generation, n_tokens: int) -> None:
        reused.append(self.n_reused)

    monkeypatch.setattr(Session, "rounds", rounds)
    monkeypatch.setattr(Generation, "fed", fed)
    arms = arm(), arm(2), arm("auto"), arm(2, draft="lookup"), arm(2, cached=False)
    sweep(plan(*arms), VERIFIER, WRONG_AFTER_C)
    assert len(sessions) == len(set(map(id, sessions))) == 5 + 5 * 6
    assert len(reused) > len(sessions)
    assert set(reused) == {0}


def test_seeds_are_equal_across_arms_and_differ_between_runs() -> None:
    results = sweep(plan(arm(), arm(2), arm(4)), VERIFIER, WRONG_AFTER_C)
    seeds = [{run.key: run.seed for run in runs} for runs in results.runs.values()]
    assert seeds[0] == seeds[1] == seeds[2]
    assert len(set(seeds[0].values())) == 6
    other = sweep(plan(arm(), seed=1), VERIFIER, WRONG_AFTER_C)
    assert {run.seed for run in other.runs[arm()]}.isdisjoint(seeds[0].values())


def test_the_baseline_is_that_of_the_same_sampler() -> None:
    speculative = arm(4, temperature=1.0, cached=False, rule="block")
    assert speculative.baseline() == arm(temperature=1.0)
    assert arm(2).baseline() == arm()


def test_without_cache_the_verifier_reads_the_whole_text_each_round() -> None:
    """A prompt of 2 tokens; round k of three tokens feeds 2 + 3 k tokens and 4 proposals."""
    linear = certain("bca", [16 * MS, 17 * MS])
    uncached = arm(4, cached=False)
    chosen = plan(arm(), uncached, n=6, repetitions=1, prompts=PROMPTS[:1])
    results = sweep(chosen, linear, certain("bcb", [2 * MS]))
    plain, drafted = figures(results, arm(), uncached)
    verify = (15 + 2 + 4) * MS + (15 + 5 + 2) * MS  # the last round may propose two
    assert drafted["time"]["verify"] == verify
    assert drafted["tok_s"] == 6 / (verify + (4 + 2) * 2 * MS)
    assert drafted["speedup"] == pytest.approx(drafted["tok_s"] / plain["tok_s"])
    assert drafted["predicted"] is drafted["predicted_textbook"] is None
    assert drafted["prefill_s"] == 0


def stop_after(runs: int) -> Any:
    def report(done: int) -> None:
        if done == runs:
            raise KeyboardInterrupt

    return report


def test_an_interruption_keeps_whole_blocks_only() -> None:
    chosen, results = plan(arm(), arm(2), arm(4)), Results(n=12)
    with pytest.raises(KeyboardInterrupt):
        sweep(chosen, VERIFIER, WRONG_AFTER_C, results, report=stop_after(3 * 2 + 2))
    assert [[run.key for run in runs] for runs in results.runs.values()] == [
        [("p1", 0), ("p2", 0)]
    ] * 3
    assert not results.complete


def record(results: Results) -> dict[str, Any]:
    """Without how many passes were timed where: those of a block broken off count as well."""
    whole = results_record(results, summarise(results))
    del whole["timings"]
    for profile in whole["profiles"].values():
        for role in ("verifier", "drafter"):
            del profile[role]["repeats"], profile[role]["n_past"]
    return whole


@pytest.mark.parametrize("done", [1, 3, 8, 17, 18])
def test_a_resumed_sweep_ends_like_one_that_was_not_interrupted(
    calls: list[Call], done: int
) -> None:
    chosen = plan(arm(), arm(2), arm(4))
    whole = record(sweep(chosen, VERIFIER, WRONG_AFTER_C))
    results = Results(n=12)
    with pytest.raises(KeyboardInterrupt):
        sweep(chosen, VERIFIER, WRONG_AFTER_C, results, report=stop_after(done))
    kept = 3 * ((done - 1) // 3)
    assert results.n_done == kept
    calls.clear()
    reported: list[int] = []
    assert record(sweep(chosen, VERIFIER, WRONG_AFTER_C, results, report=reported.append)) == whole
    assert len([call for call in calls if call[3] == 12]) == 18 - kept
    assert reported == list(range(kept + 1, 19))


def test_a_complete_sweep_loads_nothing() -> None:
    chosen = plan(arm(), arm(2))
    results = sweep(chosen, VERIFIER, WRONG_AFTER_C)
    before = record(results)

    def load(*_: str) -> Any:
        raise AssertionError("loaded")

    run_sweep(chosen, load, results)
    assert record(results) == before


def test_a_block_that_one_arm_lacks_is_run_again_and_counted_once(calls: list[Call]) -> None:
    chosen = plan(arm(), arm(2))
    results = sweep(chosen, VERIFIER, WRONG_AFTER_C)
    whole = results.runs[arm(2)].pop()
    calls.clear()
    sweep(chosen, VERIFIER, WRONG_AFTER_C, results)
    assert [call[:3] for call in calls[2:]] == [(0, 1, "p3"), (2, 1, "p3")]
    assert results.complete
    assert results.runs[arm(2)][-1] == whole


def test_each_pair_of_runtimes_is_loaded_once_and_profiled_by_its_name() -> None:
    arms = [
        replace(arm(gamma), backend=name, draft_backend="y") for name in "xy" for gamma in (0, 2)
    ]
    loads: list[tuple[str, str]] = []
    results = sweep(plan(*arms), VERIFIER, WRONG_AFTER_C, loads=loads)
    assert loads == [("x", "y"), ("y", "y")]
    assert list(results.profiles) == ["x+y", "y"]
    assert all(each["predicted"] for each in figures(results, arms[1], arms[3]))


def test_a_drafter_of_fewer_ids_is_timed_too() -> None:
    """The verifier's ids that it lacks are read as another, as in a run."""
    rows: dict[tuple[int, ...], list[float]] = {(): [0.0, 1.0, 0.0]}
    small = ToyTable(tokens=WORDS[:3], rows=rows, bos="<s>", forward_cost=tuple(T_DRAFT))
    results = sweep(plan(arm(), arm(2)), VERIFIER, small)
    assert results.profiles["toy"].drafter is not None


def test_a_verifier_that_cannot_forget_is_measured_alone_and_without_a_profile() -> None:
    forgetless = replace(VERIFIER, rollback="none")
    results = sweep(plan(arm()), forgetless, None)
    (plain,) = figures(results, arm())
    assert (plain["tok_s"], plain["n_runs"]) == (1 / T[0], 6)
    assert results.profiles == {}


class Watcher(Observer):
    """Notes what it is shown, and takes its time."""

    def __init__(self, arm: Arm, repetition: int, prompt: Prompt) -> None:
        self.told = arm.gamma, repetition, prompt.id
        self.models = 2 if arm.needs_model else 1
        self.rounds: list[Round] = []

    def begin(self, generation: Generation) -> None:
        assert len(generation.pair.models) == self.models
        CLOCK.advance(1.0)

    def round(self, done: Round) -> None:
        self.rounds.append(done)
        CLOCK.advance(1.0)

    def end(self, result: Result) -> None:
        self.result = result
        CLOCK.advance(1.0)


@pytest.fixture
def watchers() -> list[Watcher]:
    return []


def watched(watchers: list[Watcher], chosen: Plan) -> Results:
    """A sweep whose runs have a watcher each."""

    def watch(arm: Arm, repetition: int, prompt: Prompt) -> Watcher:
        watchers.append(Watcher(arm, repetition, prompt))
        return watchers[-1]

    return sweep(chosen, VERIFIER, WRONG_AFTER_C, watch=watch)


def test_an_observer_sees_the_measured_runs_in_their_order_and_no_other(
    calls: list[Call], watchers: list[Watcher]
) -> None:
    results = watched(watchers, plan(arm(), arm(2), n=8))
    assert [watcher.told for watcher in watchers] == [call[:3] for call in calls[2:]]
    runs = {
        (each.gamma, *run.key[::-1]): run for each in results.runs for run in results.runs[each]
    }
    for watcher in watchers:
        run, result = runs[watcher.told], watcher.result
        assert (run.seed, run.n_prompt) == (result.settings.seed, result.n_prompt)
        assert run.stop_reason == result.stop_reason
        assert sum(len(done.emitted) for done in watcher.rounds) == run.tally.n_tokens == 8


def test_an_observers_time_is_not_counted(watchers: list[Watcher]) -> None:
    """It takes seconds, a run milliseconds; the clock reads larger numbers then, so not exactly."""
    chosen = plan(arm(), arm(2), arm(4, cached=False))
    bare, seen = sweep(chosen, VERIFIER, WRONG_AFTER_C), watched(watchers, chosen)
    for each in chosen.arms:
        for run, other in zip(seen.runs[each], bare.runs[each], strict=True):
            assert run.tally.total == pytest.approx(other.tally.total, rel=1e-9)
            assert run.prefill_s == pytest.approx(other.prefill_s, rel=1e-9)
            assert run.tally.lengths == other.tally.lengths


def test_logits_are_kept_for_an_observer_alone(
    monkeypatch: pytest.MonkeyPatch, watchers: list[Watcher]
) -> None:
    original, kept = Session.rounds, []

    def rounds(self: Session, *args: Any, **more: Any) -> Rounds:
        kept.append(more["keep_logits"])
        return original(self, *args, **more)

    monkeypatch.setattr(Session, "rounds", rounds)
    chosen = plan(arm(), arm(2), repetitions=1)
    sweep(chosen, VERIFIER, WRONG_AFTER_C)
    assert set(kept) == {False}
    kept.clear()
    watched(watchers, chosen)
    assert kept == [False, False, *[True] * 6]  # the warm-ups, then three prompts
    found = [row for watcher in watchers for done in watcher.rounds for row in done.target]
    assert all(row.logits is not None for row in found)


def test_a_verifier_alone_looks_up(watchers: list[Watcher]) -> None:
    """abcabc... is its own draft: after three letters are repeated, four more are right."""
    arms = arm(), arm(4, draft="lookup"), arm("auto", draft="lookup")
    results = sweep(plan(*arms, n=60, repetitions=1, prompts=PROMPTS[2:]), VERIFIER, None)
    plain, fixed, auto = figures(results, *arms)
    assert fixed["tau"] > 2
    assert fixed["speedup"] > 1.5
    assert auto["speedup"] > 1.5
    # Neither formula knows rounds without a match, nor a draft that costs nothing.
    for each in (plain, fixed, auto):
        assert each["predicted"] is each["predicted_textbook"] is None
    (run,) = results.runs[arms[1]]
    assert list(run.gammas) == ["lookup"]
    assert sum(run.gammas["lookup"].values()) == run.tally.rounds


def test_a_lookup_arm_leaves_a_loaded_drafter_alone() -> None:
    arms = arm(), arm(4), arm(4, draft="lookup")
    both = sweep(plan(*arms, n=30), VERIFIER, WRONG_AFTER_C)
    alone = sweep(plan(arms[0], arms[2], n=30), VERIFIER, None)
    for run, other in zip(both.runs[arms[2]], alone.runs[arms[2]], strict=True):
        assert run.tally.total == pytest.approx(other.tally.total, rel=1e-9)
        assert (run.prefill_s, run.gammas) == (other.prefill_s, other.gammas)


def test_auto_runs_as_a_session_without_a_seed_does() -> None:
    """The same choices and times, though other arms ran before: no run learns from another."""
    chosen = plan(arm(), arm(2), arm("auto", draft="model+lookup"), n=60, repetitions=1)
    results = sweep(chosen, VERIFIER, certain("bca", T_DRAFT))
    for run, prompt in zip(results.runs[chosen.arms[2]], PROMPTS, strict=True):
        pair = Pair(Toy(VERIFIER, name="toy:v"), Toy(certain("bca", T_DRAFT), name="toy:d"))
        settings = replace(chosen.arms[2].settings, seed=run.seed)
        with Session(pair, costs=pair.costs(live=True)) as session:
            tokens = encode_prompt(pair.verifier.tokenizer, prompt.text, raw=True)
            rounds = session.rounds(tokens, settings, Stop(pair.verifier.tokenizer, 60), live=True)
            for _ in rounds:
                pass
        result = rounds.result
        assert run.gammas == {who: dict(n) for who, n in result.choices.gammas.items()}
        assert run.tally.total == pytest.approx(result.tally.total, rel=1e-9)
        text = np.array(result.tokens, dtype="<i4").tobytes()
        assert run.text_crc == zlib.crc32(text)
        assert any(len(counts) > 1 for counts in run.gammas.values())


def test_auto_begins_with_the_profile_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = Pair.costs

    def costs(self: Pair, profile: Profile | None = None, *, live: bool = False) -> Costs:
        seen.append((profile, live))
        return original(self, profile, live=live)

    monkeypatch.setattr(Pair, "costs", costs)
    known = sweep(plan(arm(), arm(2)), VERIFIER, WRONG_AFTER_C).profiles["toy"]
    assert seen == []
    sweep(plan(arm("auto"), arm(), repetitions=1, profile=known), VERIFIER, WRONG_AFTER_C)
    assert seen == [(known, True)] * 4


@pytest.mark.parametrize(
    ("arms", "widths"),
    [
        ([arm(4), arm(7)], [1, 2, 5, 8]),
        ([arm(4), arm("auto")], [1, 2, 3, 5, 9, 17, 33]),
    ],
)
def test_widths_are_timed_up_to_what_a_round_may_use(arms: list[Arm], widths: list[int]) -> None:
    chosen = plan(arm(), *arms, repetitions=1, prompts=PROMPTS[:1])
    results = sweep(chosen, VERIFIER, WRONG_AFTER_C)
    assert sorted(results.timings["toy"]["verifier"]) == widths


def test_passes_are_timed_in_the_middle_of_each_text_by_the_models_that_ran() -> None:
    """Two tokens of prompt and 30 more: the middle is 17; each run times every width twice."""
    chosen = plan(arm(), arm(2), n=30, repetitions=1, prompts=PROMPTS[:1])
    results = sweep(chosen, VERIFIER, WRONG_AFTER_C)
    profile = results.profiles["toy"]
    assert profile.drafter is not None
    assert (profile.verifier.n_past, profile.drafter.n_past) == (17, 17)
    timed = results.timings["toy"]
    assert {width: len(seconds) for width, seconds in timed["verifier"].items()} == {
        1: 4,
        2: 4,
        3: 4,
    }
    assert {width: len(seconds) for width, seconds in timed["drafter"].items()} == {
        1: 2,
        2: 2,
        3: 2,
    }
