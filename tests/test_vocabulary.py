"""Ids that are another token in the drafter: masked where they are few, refused where many."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from enumeration import EveryWay

from specx import Pair, SamplingParams, Session, Settings, Stop
from specx.core.exactness import target_law, total_variation
from specx.core.rules import RULES
from specx.core.sampling import Distribution, LogitsReader, distribution
from specx.drafters.base import Draft, Drafter
from specx.drafters.model import ModelDrafter
from specx.errors import UsageError, VocabularyError
from specx.runtime.vocabulary import drafter_mask, require_equal_ids
from specx.schedule import Fixed, Schedule
from specx_backends.toy import Toy, ToyTable

PLAIN = SamplingParams(temperature=1, top_p=1)
LETTERS = tuple(chr(0x100 + i) for i in range(200))


def letters(**changed: str) -> Toy:
    """A model of 200 even letters, of which some are `changed`: ``i7="x"``."""
    tokens = [changed.get(f"i{i}", letter) for i, letter in enumerate(LETTERS)]
    return Toy(ToyTable(tokens=tuple(tokens), rows={(): [1 / 200] * 200}))


def control(name: str, *, padding: int = 0, extra: tuple[str, ...] = ()) -> Toy:
    """Letters a and b, and a control token."""
    tokens = ("a", "b", name, *extra)
    row = [1 / len(tokens)] * len(tokens)
    return Toy(ToyTable(tokens=tokens, rows={(): row}, control=(name,), padding=padding))


def silently(verifier: Toy, drafter: Toy) -> list[int]:
    """The mask, if nothing is to be said of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [int(token) for token in drafter_mask(verifier, drafter)]


def test_equal_vocabularies_mask_nothing_and_are_not_mentioned() -> None:
    assert silently(letters(), letters()) == []


def test_a_renamed_control_token_is_never_drafted_and_said_in_one_line() -> None:
    with pytest.warns(UserWarning, match="1 of 3 ids are other tokens") as said:
        mask = drafter_mask(control("<end>"), control("<stop>"))
    assert mask.tolist() == [2]
    (line,) = [str(one.message) for one in said]
    assert "id 2 is the control token '<stop>' in the drafter" in line
    assert "the control token '<end>' in the verifier" in line
    assert "\n" not in line


def test_an_id_with_bytes_on_one_side_only_is_another_token() -> None:
    text = Toy(ToyTable(tokens=LETTERS, rows={(): [1 / 200] * 200}, control=(LETTERS[9],)))
    with pytest.warns(UserWarning, match="id 9 is the control token"):
        assert drafter_mask(letters(), text).tolist() == [9]


def test_few_ids_with_other_bytes_are_masked_and_more_are_another_tokenizer() -> None:
    two = {f"i{i}": f"x{i}" for i in (3, 8)}  # the hundredth of 200
    with pytest.warns(UserWarning, match="2 of 200 ids are other tokens"):
        assert drafter_mask(letters(), letters(**two)).tolist() == [3, 8]
    with pytest.raises(VocabularyError, match="3 of 200 shared ids differ.*same model family"):
        drafter_mask(letters(), letters(**two, i9="x9"))


def test_a_pair_without_one_common_token_is_refused() -> None:
    one, other = (Toy(ToyTable(tokens=(n,), rows={(): [1]}, control=(n,))) for n in ("<a>", "<b>"))
    with pytest.raises(VocabularyError, match="1 of 1 shared ids differ"):
        drafter_mask(one, other)


def test_what_is_padding_in_the_verifier_is_masked_in_a_drafter_that_has_it() -> None:
    verifier, drafter = control("<end>", padding=2), control("<end>", extra=("c",))
    assert silently(verifier, drafter) == [3]
    assert silently(drafter, verifier) == [3, 4]


def test_a_comparison_bears_no_difference() -> None:
    require_equal_ids(letters(), letters())
    with pytest.raises(VocabularyError, match="1 of 200 ids .*id 3 is 'x' in the second and"):
        require_equal_ids(letters(), letters(i3="x"))


def test_a_pair_with_a_renamed_token_runs_and_never_drafts_it() -> None:
    with pytest.warns(UserWarning, match="never drafted"):
        pair = Pair(control("<end>"), control("<stop>"))
    stop = Stop(pair.verifier.tokenizer, 200)
    generation = Session(pair).rounds([0, 2, 1], Settings(sampling=PLAIN), stop)
    rounds = list(generation)
    assert all(2 not in done.draft.ids for done in rounds)
    assert all(row.prob(2) == 0 for done in rounds for row in done.draft.distributions)
    assert 2 in generation.result.tokens  # the verifier writes it all the same


@pytest.mark.parametrize("wrong", [3, -1])
def test_a_prompt_with_an_id_that_the_verifier_lacks_is_refused(wrong: int) -> None:
    pair = Pair(control("<end>"), control("<end>", extra=("c",)))
    with pytest.raises(
        UsageError, match=rf"tokens\[1\] is {wrong}; it must be a whole number, 0 to 2"
    ):
        Session(pair).rounds([0, wrong, 1], Settings(), Stop(pair.verifier.tokenizer, 1))
    assert pair.verifier.n_past == 0


def test_an_id_that_only_the_drafter_lacks_may_stand_in_a_prompt() -> None:
    pair = Pair(control("<end>", extra=("c",)), control("<end>"))
    Session(pair).generate([0, 3, 1], gamma=1, max_tokens=2)
    assert all(model.n_past >= 3 for model in pair.models)


# The distribution of the text, enumerated

PROMPT, N, LOST = [0, 1, 0], 3, 0.3


def table(seed: int, name: str) -> ToyTable:
    """Random rows in which the control token always has the probability `LOST`."""
    rng = np.random.default_rng(seed)
    rows = {
        context: [*((1 - LOST) * rng.dirichlet([0.8, 0.8])).tolist(), LOST]
        for context in [(), (0,), (1,), (2,)]
    }
    return ToyTable(tokens=("a", "b", name), rows=rows, control=(name,))


class NotRenormalised(ModelDrafter):
    """Planted fault: Q as it was before the mask, though the draw was made after it."""

    def propose(self, *args: Any, **more: Any) -> Draft:
        draft = super().propose(*args, **more)
        draft.distributions = [
            Distribution((1 - LOST) * row.probs, row.ids) for row in draft.distributions
        ]
        return draft


def distance(rule: str, kind: type[ModelDrafter]) -> float:
    """Total variation between the text of a pair with a renamed token and the verifier's."""
    verifier, drafter = Toy(table(3, "<end>")), Toy(table(8, "<stop>"))
    with pytest.warns(UserWarning, match="never drafted"):
        masked = drafter_mask(verifier, drafter)

    def make() -> tuple[list[Drafter], Schedule]:
        drafter.truncate(0)
        return [kind(drafter, LogitsReader("drafter", PLAIN, masked))], Fixed(2)

    ways = EveryWay(verifier, make, RULES[rule], PROMPT, N)
    law = ways.law()
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert any(2 in text for text in law)
    assert ways.gammas[2] > 0
    last = tuple(PROMPT)
    target = target_law(lambda c: distribution(table(3, "<end>").logits((last + c)[-1:]), PLAIN), N)
    return float(total_variation(law, target))


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_text_is_the_verifiers_where_an_id_is_masked_in_the_drafter(rule: str) -> None:
    assert distance(rule, ModelDrafter) <= 1e-12


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_mask_that_is_not_renormalised_is_refuted(rule: str) -> None:
    assert distance(rule, NotRenormalised) > 0.01
