"""The rules: enumeration with exact fractions, uniforms at the edges, and planted faults."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specx.core.exactness import Table, emitted_law, outcome_law, target_law, total_variation
from specx.core.rules import RULES, Block, Rule, TokenRule, Verdict, judgements, residual
from specx.core.sampling import Distribution
from specx.errors import UsageError

SIZES = [(2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (3, 2), (3, 3), (4, 1), (4, 2)]


def fractions(rng: random.Random, size: int) -> Distribution:
    """A random distribution in exact fractions; zeros are common."""
    weights = [rng.choice([0, 0, 1, 2, 3, 5]) for _ in range(size)]
    if not any(weights):
        weights[rng.randrange(size)] = 1
    return Distribution(np.array([Fraction(w, sum(weights)) for w in weights]))


def random_table(rng: random.Random, size: int) -> Table:
    """A table that depends on the whole context; filters may have removed ids."""
    rows: dict[tuple[int, ...], Distribution] = {}

    def table(context: tuple[int, ...]) -> Distribution:
        if context not in rows:
            rows[context] = (
                sparse(fractions(rng, size)) if rng.random() < 0.5 else (fractions(rng, size))
            )
        return rows[context]

    return table


def sparse(chances: Distribution) -> Distribution:
    kept = np.flatnonzero(chances.probs)
    return Distribution(chances.probs[kept], kept)


def as_floats(table: Table) -> Table:
    def floats(context: tuple[int, ...]) -> Distribution:
        row = table(context)
        return Distribution(row.probs.astype(np.float64), row.ids)

    return floats


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
@pytest.mark.parametrize(("size", "g"), SIZES)
@pytest.mark.parametrize("seed", range(4))
def test_emits_exactly_the_targets_law(rule: type[Rule], size: int, g: int, seed: int) -> None:
    rng = random.Random(f"{size} {g} {seed}")
    target, draft = random_table(rng, size), random_table(rng, size)
    assert total_variation(emitted_law(rule, target, draft, g), target_law(target, g + 1)) == 0
    floats = emitted_law(rule, as_floats(target), as_floats(draft), g)
    assert total_variation(floats, target_law(as_floats(target), g + 1)) < 1e-12


def dense(*probs: object) -> Distribution:
    return Distribution(np.array([Fraction(str(p)) for p in probs]))


def test_worked_example_of_the_full_residual() -> None:
    left = residual(dense(".3", ".5", ".2"), dense(".6", ".4", "0"))
    assert left.probs.tolist() == [0, Fraction(1, 3), Fraction(2, 3)]


class OneHotResidual(TokenRule):
    """Planted fault: subtract only the drafted token's own mass."""

    def after(self, n: int) -> Distribution:
        block, only = self.block, np.array([self.block.tokens[n]])
        return residual(block.target[n], Distribution(block.draft[n].at(only), only))


def test_one_hot_residual_is_caught() -> None:
    target, draft = dense(".3", ".5", ".2"), dense(".6", ".4", "0")
    law = emitted_law(OneHotResidual, lambda _: target, lambda _: draft, 1)
    first = [sum(mass for key, mass in law.items() if key[0] == x) for x in range(3)]
    assert [round(float(mass), 3) for mass in first] == [0.3, 0.614, 0.086]
    assert float(total_variation(law, target_law(lambda _: target, 2))) == pytest.approx(
        0.114, abs=1e-3
    )


class AlignedByPlace(TokenRule):
    """Planted fault: subtract entry from entry where filters left different supports."""

    def after(self, n: int) -> Distribution:
        target, draft = self.block.target[n], self.block.draft[n]
        probs = np.resize(draft.probs, len(target.probs))
        return residual(target, Distribution(probs, target.ids))


def test_residual_aligned_by_place_is_caught() -> None:
    target = sparse(dense("0", ".5", ".25", ".25"))
    draft = sparse(dense(".5", ".5", "0", "0"))
    law = emitted_law(AlignedByPlace, lambda _: target, lambda _: draft, 1)
    assert total_variation(law, target_law(lambda _: target, 2)) > Fraction(1, 20)


def test_a_draft_taken_greedily_but_called_sampled_is_caught() -> None:
    target, draft = dense(".5", ".3", ".2"), dense(".6", ".1", ".3")
    block = Block([target, target], [draft], [0])  # the largest, always
    law = outcome_law(TokenRule, block)
    assert law[1, 0] == sum(mass for (n, _), mass in law.items() if n == 1) * Fraction(1, 2)
    first = {0: sum(mass for (n, _), mass in law.items() if n == 1)}
    for (n, token), mass in law.items():
        if n == 0:
            first[token] = first.get(token, 0) + mass
    assert [round(float(first.get(x, 0)), 3) for x in range(3)] == [0.833, 0.167, 0]


def stopped_drafts(
    draft: Table, g: int, floor: Fraction, *, drop: bool
) -> dict[tuple[int, ...], Fraction]:
    """Law of drafts that end at the first token less likely than `floor`, or just before it."""
    law: dict[tuple[int, ...], Fraction] = {}
    for tokens, chance in target_law(draft, g).items():
        rare = [i for i, token in enumerate(tokens) if draft(tokens[:i]).prob(token) < floor]
        size = g if not rare else rare[0] + (0 if drop else 1)
        law[tokens[:size]] = law.get(tokens[:size], Fraction(0)) + chance
    return law


@pytest.mark.parametrize("drop", [False, True])
def test_ending_after_a_drawn_token_is_exact_and_dropping_it_is_not(drop: bool) -> None:
    target, draft = dense(".5", ".3", ".2"), dense(".2", ".3", ".5")
    proposals = stopped_drafts(lambda _: draft, 2, Fraction(1, 4), drop=drop)
    law = emitted_law(TokenRule, lambda _: target, lambda _: draft, 2, proposals)
    error = total_variation(law, target_law(lambda _: target, 3))
    assert error > Fraction(1, 20) if drop else error == 0


@pytest.mark.parametrize(
    ("u", "n"),
    [(0.0, 1), (np.nextafter(0.5, 0), 1), (0.5, 0), (np.nextafter(1, 0), 0)],
)
def test_uniforms_at_the_edge_of_the_ratio(u: float, n: int) -> None:
    target, draft = Distribution(np.array([0.25, 0.75])), Distribution(np.array([0.5, 0.5]))
    block = Block([target, target], [draft], [0])
    assert TokenRule(block).decide(np.array([u]), 0.0).n_accepted == n


def test_zero_uniform_rejects_what_the_target_excludes() -> None:
    target, draft = Distribution(np.array([0.0, 1.0])), Distribution(np.array([0.5, 0.5]))
    block = Block([target, target], [draft], [0])
    assert TokenRule(block).decide(np.zeros(1), 0.0) == Verdict((), 1)


def test_empty_block_draws_from_the_target() -> None:
    block = Block([Distribution(np.array([0.25, 0.75]))], [], [])
    assert TokenRule(block).decide(np.empty(0), 0.3) == Verdict((), 1)


def test_wrong_lengths_and_impossible_drafts_are_refused() -> None:
    row = Distribution(np.array([1.0, 0.0]))
    with pytest.raises(UsageError, match="need 1 draft and 2 target"):
        Block([row], [row], [0])
    with pytest.raises(UsageError, match="token 1 at place 0 has draft probability 0"):
        TokenRule(Block([row, row], [row], [1])).decide(np.zeros(1), 0.0)


def test_residual_rounded_to_nothing_stays_in_the_targets_support() -> None:
    target = sparse(Distribution(np.array([0.0, 0.3, 0.7])))
    assert residual(target, target).ids is not None
    assert residual(target, target).draw(0.0) == 1


masses = st.lists(
    st.one_of(st.just(0.0), st.just(1e-300), st.floats(1e-12, 1.0)), min_size=2, max_size=6
).filter(lambda w: sum(w) > 1e-6)


@given(masses, masses, st.data())
def test_any_pair_yields_tokens_of_the_target(
    p: list[float], q: list[float], data: st.DataObject
) -> None:
    size = min(len(p), len(q))
    target, draft = np.array(p[:size]), np.array(q[:size])
    if target.sum() == 0 or draft.sum() == 0:
        return
    rows = Distribution(target / target.sum()), Distribution(draft / draft.sum())
    drafted = data.draw(st.sampled_from(np.flatnonzero(rows[1].probs).tolist()))
    below_one = st.floats(0, 1, exclude_max=True)
    u, v = data.draw(below_one), data.draw(below_one)
    for rule in RULES.values():
        verdict = rule(Block([rows[0]] * 2, [rows[1]], [drafted])).decide(np.array([u]), v)
        assert rows[0].probs[verdict.token] > 0
        assert verdict.n_accepted == 0 or rows[0].probs[drafted] > 0


def test_published_means_of_the_iid_example() -> None:
    third = Fraction(1, 3)
    target = Distribution(np.array([third, 2 * third]))
    draft = Distribution(np.array([2 * third, third]))
    means = dict.fromkeys(RULES, Fraction(0))
    for tokens, chance in target_law(lambda _: draft, 2).items():
        block = Block([target] * 3, [draft] * 2, tokens)
        for name, rule in RULES.items():
            kept = sum(n * mass for (n, _), mass in outcome_law(rule, block).items())
            means[name] += chance * kept
    assert (means["token"], means["block"]) == (Fraction(10, 9), Fraction(11, 9))


@pytest.mark.parametrize("seed", range(10))
def test_expected_is_the_mean_of_what_is_accepted_and_block_is_never_less(seed: int) -> None:
    rng = random.Random(seed)
    for v, g in ((2, 3), (3, 2), (4, 2)):
        target, draft = random_table(rng, v), random_table(rng, v)
        means, told = ({name: Fraction(0) for name in RULES} for _ in range(2))
        for tokens, chance in target_law(draft, g).items():
            prefixes = [tokens[:i] for i in range(g + 1)]
            block = Block([target(p) for p in prefixes], [draft(p) for p in prefixes[:g]], tokens)
            for name, rule in RULES.items():
                kept = sum(n * mass for (n, _), mass in outcome_law(rule, block).items())
                means[name] += chance * kept
                told[name] += chance * rule(block).expected
        assert means == told
        assert means["block"] >= means["token"]


def test_block_expects_at_least_as_many_as_token_on_ten_thousand_tables() -> None:
    rng = np.random.default_rng(7)
    for _ in range(10_000):
        v, g = int(rng.integers(2, 9)), int(rng.integers(1, 6))
        target = [Distribution(row) for row in rng.dirichlet(np.ones(v) * 0.6, g + 1)]
        draft = [Distribution(row) for row in rng.dirichlet(np.ones(v) * 0.6, g)]
        block = Block(target, draft, [row.draw(rng.random()) for row in draft])
        assert RULES["block"](block).expected >= RULES["token"](block).expected - 1e-12


@pytest.mark.parametrize("hit", [True, False])
def test_greedy_is_the_same_under_every_rule(hit: bool) -> None:
    one, two = (Distribution(np.ones(1), np.array([i])) for i in (3, 5))
    block = Block([one, two], [one if hit else two], [3 if hit else 5])
    verdicts = {rule(block).decide(np.array([0.5]), 0.9) for rule in RULES.values()}
    assert verdicts == {Verdict((3,), 5) if hit else Verdict((), 3)}


ROW = Distribution(np.array([0.5, 0.5]))


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_a_tree_is_refused_and_one_without_forks_is_a_path(rule: type[Rule]) -> None:
    path, tree = (Block([ROW] * 3, [ROW] * 2, [0, 1], parents) for parents in ([-1, 0], [-1, -1]))
    assert rule(path).decide(np.zeros(2), 0.0) == Verdict((0, 1), 0)
    with pytest.raises(UsageError, match=rf"'{rule.name}' judges a path.*parents \[-1, -1\]"):
        rule(tree)
    with pytest.raises(UsageError, match="2 drafted tokens need 2 parents; got 1"):
        Block([ROW] * 3, [ROW] * 2, [0, 1], [-1])


def test_each_rule_is_asked_once_and_the_one_in_use_stands_in_its_place() -> None:
    block = Block([ROW] * 2, [ROW], [0])
    judged = judgements(block, OneHotResidual)
    assert list(judged) == list(RULES)
    assert type(judged["token"]) is OneHotResidual
    for each in judged.values():
        assert each.chances is each.chances
        assert each.survival is each.survival
