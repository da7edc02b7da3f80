"""Records a run's choices and repeats them: `--gamma-trace` and `--gamma-replay`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specx.codec import Count, Gamma, convert, lines_of, parse, refuse, to_json
from specx.drafters.base import Drafter
from specx.errors import UsageError
from specx.schedule.base import Decision, Outcome, Schedule, most_proposals

__all__ = ["Replay", "Step", "Traced", "read_steps", "write_step"]

REMEDY = "specx run --gamma-trace FILE writes one"


@dataclass(frozen=True, kw_only=True)
class Step:
    """The choice made in one round."""

    length: Count
    """Tokens in the text when the round began."""
    drafter: str
    gamma: Gamma
    """Tokens proposed."""
    reason: str = ""
    restarted: Count | None = None
    """The position from which the drafter read the text anew, if it did."""


class Traced:
    """Another schedule, each of whose choices is reported."""

    def __init__(self, schedule: Schedule, report: Callable[[Step], None]) -> None:
        self.inner = schedule
        self.costs = schedule.costs
        self._report = report
        self._length = 0
        self._decision: Decision | None = None

    def begin(self) -> None:
        self._decision = None
        self.inner.begin()

    def plan(self, tokens: Sequence[int], drafters: Sequence[Drafter], room: int) -> Decision:
        self._length = len(tokens)
        self._decision = self.inner.plan(tokens, drafters, room)
        return self._decision

    def go_on(self, k: int, logits: NDArray[np.float32] | None) -> bool:
        return self.inner.go_on(k, logits)

    def learn(self, outcome: Outcome) -> None:
        self.inner.learn(outcome)
        decision = self._decision
        if decision is not None:
            self._report(
                Step(
                    length=self._length,
                    drafter=decision.drafter.kind,
                    gamma=len(outcome.survival),
                    reason=decision.reason,
                    restarted=decision.restarted,
                )
            )


class Replay:
    """Repeats the choices of another run of the same models, prompt, sampling and seed.

    After the last of them it decodes plainly. A trace of several texts holds their steps in order.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = iter(steps)
        self.costs = None

    def begin(self) -> None:
        """Nothing to forget: the next step is the new text's first."""

    def plan(self, tokens: Sequence[int], drafters: Sequence[Drafter], room: int) -> Decision:
        step = next(self._steps, None)
        if step is None:
            return Decision(drafters[0], 0, "trace ended")
        if step.length != len(tokens):
            raise UsageError(
                f"the replayed trace has a round at {step.length} tokens where this run has "
                f"{len(tokens)}; replay with the models, prompt, sampling and seed of its run"
            )
        drafter = _named(step.drafter, drafters)
        if step.restarted is not None:
            if step.restarted >= len(tokens):
                raise UsageError(
                    f"the replayed trace restarts the drafter at {step.restarted} in a text of "
                    f"{len(tokens)} tokens; replay a file that --gamma-trace wrote"
                )
            drafter.restart(step.restarted)
        limit = min(step.gamma, room)
        outlook = drafter.outlook(tokens)
        if limit > most_proposals(outlook, room):
            raise UsageError(
                f"the replayed trace drafts {limit} tokens after {len(tokens)}, and this drafter "
                f"can draft {most_proposals(outlook, room)} ({outlook.bound}); replay with the "
                "models, context sizes, prompt, sampling and seed of its run"
            )
        return Decision(drafter, limit, f"replayed: {step.reason}", restarted=step.restarted)

    def go_on(self, k: int, logits: NDArray[np.float32] | None) -> bool:
        return True

    def learn(self, outcome: Outcome) -> None:
        """Nothing to learn."""


def _named(name: str, drafters: Sequence[Drafter]) -> Drafter:
    for drafter in drafters:
        if drafter.kind == name:
            return drafter
    known = ", ".join(drafter.kind for drafter in drafters)
    raise UsageError(f"the replayed trace drafts with {name}; this run has {known}")


def write_step(step: Step) -> str:
    """One line of a trace."""
    return to_json(asdict(step)) + "\n"


def read_steps(path: Path) -> list[Step]:
    """The steps in a file of such lines.

    Raises
    ------
    UsageError
        If the file cannot be read, or a line is no step.
    """
    lines = lines_of(path, "the gamma trace")
    return [_step(f"{path}, line {number}", line) for number, line, _ in lines]


def _step(place: str, line: bytes) -> Step:
    step = convert(parse(line, place, REMEDY), Step, place, REMEDY)
    if step.restarted is not None and step.restarted > step.length:
        reason = f"{step.restarted} is beyond the text of {step.length} tokens"
        refuse(place, "restarted", reason, REMEDY)
    return step
