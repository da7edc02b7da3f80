"""A run's choices written down, and repeated: `--gamma-trace` and `--gamma-replay`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specx.codec import Count, Gamma, convert, lines_of, parse, refuse, to_json
from specx.drafters.base import Drafter
from specx.errors import UsageError
from specx.schedule.base import Outcome, Plan, Schedule, most_proposals

__all__ = ["Replay", "Step", "Traced", "read_steps", "write_step"]

REMEDY = "specx run --gamma-trace FILE writes one"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One round's choice."""

    length: Count
    """Tokens of the text when the round began."""
    drafter: str
    gamma: Gamma
    """Tokens proposed."""
    reason: str = ""
    restarted: Count | None = None
    """Where the drafter began to read anew, if it did."""


class Traced:
    """Another schedule; what it chose in each round is reported."""

    def __init__(self, schedule: Schedule, report: Callable[[Step], None]) -> None:
        self.inner = schedule
        self.costs = schedule.costs
        self._report = report
        self._length = 0
        self._plan: Plan | None = None

    def plan(self, tokens: Sequence[int], drafters: Sequence[Drafter], room: int) -> Plan:
        self._length, self._plan = len(tokens), self.inner.plan(tokens, drafters, room)
        return self._plan

    def go_on(self, k: int, logits: NDArray[np.float32] | None) -> bool:
        return self.inner.go_on(k, logits)

    def learn(self, outcome: Outcome) -> None:
        self.inner.learn(outcome)
        plan = self._plan
        if plan is not None:
            self._report(
                Step(
                    length=self._length,
                    drafter=plan.drafter.kind,
                    gamma=len(outcome.survival),
                    reason=plan.reason,
                    restarted=plan.restarted,
                )
            )


class Replay:
    """Repeats the choices of another run of the same models, prompt, sampling and seed.

    After the last of them it decodes plainly.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = iter(steps)
        self.costs = None

    def plan(self, tokens: Sequence[int], drafters: Sequence[Drafter], room: int) -> Plan:
        step = next(self._steps, None)
        if step is None:
            return Plan(drafters[0], 0, "trace ended")
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
        return Plan(drafter, limit, f"replayed: {step.reason}", restarted=step.restarted)

    def go_on(self, k: int, logits: NDArray[np.float32] | None) -> bool:
        return True

    def learn(self, outcome: Outcome) -> None:
        """Nothing: all is decided."""


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
