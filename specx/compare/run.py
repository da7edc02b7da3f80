"""Runs one pair on two systems in turns, on the same prompts and random streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specx.bench.profiling import PassTimer, Samples, encode_prompt
from specx.bench.records import Arm, Results, Run
from specx.bench.sweep import WARM_UP_TOKENS, Bench, Plan
from specx.compare.agreement import Agreement, Forced, agreement_along
from specx.errors import VocabularyError
from specx.interrupts import held
from specx.runtime.backend import LogitsBackend
from specx.runtime.vocabulary import drafter_mask, require_equal_ids, verifier_mask
from specx.session.pair import Pair
from specx.session.tally import merged

__all__ = [
    "Comparison",
    "System",
    "curve_widths",
    "require_same_tokens",
    "run_comparison",
]

FEW_WIDTHS = 9
"""Up to this width every one is timed, because the steps of a curve may lie anywhere."""


@dataclass(frozen=True)
class System:
    """A loaded pair, with its name and its two arms."""

    name: str
    """A name that distinguishes it from the other system."""
    pair: Pair
    speculative: Arm

    @property
    def arms(self) -> tuple[Arm, Arm]:
        """The arms: the verifier alone, and with its drafter."""
        return self.speculative.baseline(), self.speculative

    @property
    def drafter(self) -> LogitsBackend:
        """The pair's drafter, which a comparison needs."""
        assert self.pair.drafter is not None
        return self.pair.drafter


@dataclass
class Comparison:
    """The measurements in whole blocks: one prompt and repetition under all four arms."""

    names: tuple[str, str]
    results: tuple[Results, Results]
    """The results of A and of B."""
    verifiers: dict[str, Agreement] = field(default_factory=dict)
    """Agreement by prompt, along A's plain text; empty if both systems share the loaded model."""
    drafters: dict[str, Agreement] = field(default_factory=dict)

    @property
    def n_blocks(self) -> int:
        """The number of whole blocks."""
        return min((len(runs) for side in self.results for runs in side.runs.values()), default=0)

    @property
    def complete(self) -> bool:
        """True if every planned run was made."""
        return all(side.complete for side in self.results)


def run_comparison(
    systems: tuple[System, System],
    plan: Plan,
    found: Comparison,
    *,
    report: Callable[[int], None] = lambda runs: None,
) -> None:
    """Run each prompt and repetition under all four arms in turns, and add it to `found`.

    Every block starts with a different arm; only whole blocks are added. Passes are timed after
    each run, so that a slow minute slows them as well.

    Parameters
    ----------
    plan
        Its arms are ignored: each system has its own two.
    report
        Called with the number of finished runs, of four per block.

    Raises
    ------
    VocabularyError
        If the two systems encode a prompt as different tokens.
    """
    require_same_tokens(systems, plan)
    _expect(systems, plan, found)
    benches, likeness = _benches(systems, plan, found), _likeness(systems)
    arms = [(side, arm) for side in (0, 1) for arm in systems[side].arms]
    for side, arm in arms:
        benches[side].run(arm, *next(plan.blocks()), limit=WARM_UP_TOKENS)
    for turn, (repetition, prompt) in enumerate(plan.blocks()):
        block: list[tuple[int, Arm, Run]] = []
        text: list[int] = []
        place = turn % len(arms)
        for side, arm in [*arms[place:], *arms[:place]]:
            run = benches[side].run(arm, repetition, prompt, limit=plan.n)
            if (side, arm) == arms[0]:
                text = benches[side].text
            benches[side].time_passes()
            block.append((side, arm, run))
            report(len(arms) * turn + len(block))
        if repetition == 0:
            likeness.along(prompt.id, text, block[0][2].n_prompt, found)
        with held():  # as in a sweep, a block is kept for all arms or for none
            for side, arm, run in block:
                found.results[side].add(arm, run)
        _keep_profiles(systems, benches, found)


def _expect(systems: tuple[System, System], plan: Plan, found: Comparison) -> None:
    """Enter the arms in `found`, with the number of runs planned for each."""
    for system, results in zip(systems, found.results, strict=True):
        results.planned = plan.runs_an_arm
        for arm in system.arms:
            results.runs.setdefault(arm, [])


def _benches(systems: tuple[System, System], plan: Plan, found: Comparison) -> list[Bench]:
    """The systems, each with a timer; a model that both share is timed once for both."""
    first, second = systems
    samples: tuple[Samples, Samples] = {}, {}
    for role, shared in (
        ("verifier", first.pair.verifier is second.pair.verifier),
        ("drafter", first.drafter is second.drafter),
    ):
        samples[0][role] = {}
        samples[1][role] = samples[0][role] if shared else {}
    for results, timed, system in zip(found.results, samples, systems, strict=True):
        results.timings[system.speculative.runtimes] = timed
    widths = curve_widths(first.speculative.longest_draft)
    return [
        Bench(system.pair, plan, PassTimer(system.pair, widths, timed))
        for system, timed in zip(systems, samples, strict=True)
    ]


def _keep_profiles(
    systems: tuple[System, System], benches: Sequence[Bench], found: Comparison
) -> None:
    for system, bench, results in zip(systems, benches, found.results, strict=True):
        alone = merged([run.tally for run in results.runs[system.arms[0]]])
        core = alone.times.core / alone.rounds if alone.rounds else 0.0
        profile = bench.timer.profile(core)
        assert profile is not None, "a pair's models can forget, so their passes were timed"
        results.profiles[system.speculative.runtimes] = profile


def curve_widths(gamma: int) -> list[int]:
    """The widths to time for rounds of `gamma` tokens."""
    wide = range(2 * FEW_WIDTHS - 2, gamma, FEW_WIDTHS - 1)
    return sorted({1, 2, *range(1, min(gamma + 1, FEW_WIDTHS) + 1), *wide, gamma + 1})


def require_same_tokens(systems: Sequence[System], plan: Plan) -> None:
    """Refuse systems that do not share their tokens.

    Raises
    ------
    VocabularyError
        If a prompt's ids differ, or an id in both vocabularies stands for different bytes.
    """
    first, second = systems
    one, other = (system.pair.verifier for system in systems)
    if one is other:
        return
    for prompt in plan.prompts:
        ids, theirs = (
            encode_prompt(model.tokenizer, prompt.text, raw=plan.raw, chat=plan.chat)
            for model in (one, other)
        )
        if ids != theirs:
            raise VocabularyError(_misread(first.name, second.name, prompt.id, ids, theirs))
    try:
        require_equal_ids(one, other)
    except VocabularyError as error:
        raise VocabularyError(
            f"{first.name} and {second.name} have different tokens and cannot be compared: {error}"
        ) from error


def _misread(a: str, b: str, prompt: str, ids: Sequence[int], theirs: Sequence[int]) -> str:
    pairs = zip(ids, theirs, strict=False)
    place = next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(ids), len(theirs)))
    shown = [list(side[place : place + 3]) for side in (ids, theirs)]
    return (
        f"{a} and {b} encode prompt {prompt} as different tokens (from position {place} on, "
        f"{shown[0]} and {shown[1]}); compare files of one model, or add --raw if only the chat "
        "template differs"
    )


@dataclass(frozen=True)
class _Likeness:
    """The models of two systems to compare, by role; None where both share one."""

    verifiers: tuple[Forced, Forced] | None
    drafters: tuple[Forced, Forced] | None

    def along(self, prompt: str, text: Sequence[int], n_prompt: int, found: Comparison) -> None:
        """Compare the models along one text."""
        params = next(iter(found.results[0].runs)).sampling
        for both, kept in ((self.verifiers, found.verifiers), (self.drafters, found.drafters)):
            if both is not None:
                kept[prompt] = agreement_along(*both, text, n_prompt, params)


def _likeness(systems: tuple[System, System]) -> _Likeness:
    """The models, fed as in a round: verifiers a whole draft at a time, drafters one token."""
    a, b = systems
    verifiers, drafters = ((a.pair.verifier, b.pair.verifier), (a.drafter, b.drafter))
    width = a.speculative.longest_draft + 1
    both_verifiers = both_drafters = None
    if verifiers[0] is not verifiers[1]:
        first, second = (Forced(model, verifier_mask(model), width) for model in verifiers)
        both_verifiers = first, second
    if drafters[0] is not drafters[1]:
        first, second = (
            Forced(model, drafter_mask(verifier, model), 1)
            for verifier, model in zip(verifiers, drafters, strict=True)
        )
        both_drafters = first, second
    return _Likeness(both_verifiers, both_drafters)
