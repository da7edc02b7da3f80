"""Measures of how well a number predicts acceptance, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import rankdata

from specx.bench.speedup import FEWEST
from studies.observations import PREDICTORS, Observations

__all__ = ["Estimate", "Predictor", "analyse", "auc", "mean_estimate", "rank_correlation"]

BINS, FOLDS, RESAMPLES, CONFIDENCE = 10, 5, 1000, 0.95

CONFIDENT = ("draft_margin",)
"""Predictors that are large where a model is confident."""

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95% interval (percentile bootstrap over prompts); no ends under 5 prompts."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """The predictive value of one number for acceptance."""

    name: str
    meaning: str
    correlation: Estimate
    """Spearman's, with accepted or not (1 or 0)."""
    correlation_overlap: Estimate
    """Spearman's, with sum min(P, Q), which has no noise of draws."""
    auc: Estimate
    """Chance that of a rejected and an accepted token the rejected one had the less confident
    value; 0.5 predicts nothing."""
    brier: float
    """Mean squared error of a logistic fit, each prompt predicted from the others."""
    brier_base: float
    """The same for the acceptance rate alone."""
    bins: list[dict[str, Any]]
    """Tenths of the tokens by the predictor; ends are None where they are infinite."""
    calibration: list[dict[str, float]]
    """Tenths of the tokens by predicted acceptance: predicted and observed."""


def analyse(
    seen: Observations,
    *,
    seed: int = 0,
    naive: Observations | None = None,
    resamples: int = RESAMPLES,
) -> dict[str, Any]:
    """All results of a study, as JSON values.

    Parameters
    ----------
    seen
        Tested tokens.
    naive
        The same traces with untested tokens labelled as rejected, to show the bias.
    resamples
        Bootstrap samples behind each interval.
    """
    draws = _Draws(seed, resamples)
    scores = _scores_with_intervals(seen, draws)
    return {
        "n_tokens": len(seen),
        "n_prompts": len(np.unique(seen.prompt)),
        "alpha": asdict(mean_estimate(seen.accepted, seen.prompt, draws)),
        "overlap": asdict(mean_estimate(seen.overlap, seen.prompt, draws)),
        "predictors": [asdict(_predictor(name, seen, scores[name], draws)) for name in PREDICTORS],
        "by_kind": _groups(seen, seen.kind, draws),
        "by_position": _groups(seen, seen.position, draws),
        "untested_called_rejected": None if naive is None else _naive(naive),
    }


@dataclass(frozen=True)
class _Draws:
    """The prompts in each bootstrap sample.

    Tokens of one prompt resemble each other; resampling single tokens would make the interval too
    narrow. Efron & Tibshirani 1993, ch. 8 and 13.
    """

    seed: int = 0
    resamples: int = RESAMPLES

    def of(self, n_prompts: int) -> NDArray[np.intp]:
        """Prompts drawn with replacement, shape (resamples, n_prompts)."""
        rng = np.random.default_rng(self.seed)
        return rng.integers(n_prompts, size=(self.resamples, n_prompts))


def mean_estimate(
    values: NDArray[Any], prompt: NDArray[np.intp], draws: _Draws | None = None
) -> Estimate:
    """A mean over tokens and its interval over prompts."""
    _, number = np.unique(prompt, return_inverse=True)
    sums, counts = np.bincount(number, weights=values), np.bincount(number)
    drawn = (draws or _Draws()).of(len(counts))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    return _interval(float(values.mean()), means, len(counts))


def _scores_with_intervals(seen: Observations, draws: _Draws) -> dict[str, list[Estimate]]:
    """By predictor: correlation, correlation with the overlap, AUC."""
    columns: list[NDArray[Any]] = [seen.accepted, seen.overlap, *seen.predictors.values()]
    order = np.argsort(seen.prompt, kind="stable")
    starts = np.flatnonzero(np.diff(seen.prompt[order])) + 1
    members = np.split(order, starts)
    drawn = []
    for chosen in draws.of(len(members)):
        where = np.concatenate([members[i] for i in chosen])
        drawn.append(_scores(*(column[where] for column in columns)))
    values, samples = _scores(*columns), np.array(drawn)
    return {
        name: [_interval(values[i, k], samples[:, i, k], len(members)) for k in range(3)]
        for i, name in enumerate(seen.predictors)
    }


def _scores(accepted: NDArray[np.bool_], overlap: Floats, *predictors: Floats) -> Floats:
    """Shape (predictors, 3); ranks are computed once, because they take most of the time."""
    fates, overlaps = rankdata(accepted), rankdata(overlap)
    found = []
    for name, values in zip(PREDICTORS, predictors, strict=True):
        ranks = rankdata(values)
        rejected = _auc_of_ranks(ranks, ~accepted)
        doubt = 1 - rejected if name in CONFIDENT else rejected
        found.append((_correlation(ranks, fates), _correlation(ranks, overlaps), doubt))
    return np.array(found)


def _interval(value: float, samples: Floats, n_prompts: int) -> Estimate:
    finite, tail = samples[np.isfinite(samples)], (1 - CONFIDENCE) / 2
    if not np.isfinite(value) or not len(finite):
        return Estimate(None, None, None)
    if n_prompts < FEWEST:  # a bootstrap over so few is far too narrow
        return Estimate(float(value), None, None)
    low, high = np.quantile(finite, [tail, 1 - tail])
    return Estimate(float(value), float(low), float(high))


def rank_correlation(x: Floats, y: NDArray[Any]) -> float:
    """Spearman's rho; NaN where one of them does not vary."""
    return _correlation(rankdata(x), rankdata(y))


def auc(score: Floats, positive: NDArray[np.bool_]) -> float:
    """Chance that a positive has the larger score, ties counting half (Mann & Whitney)."""
    return _auc_of_ranks(rankdata(score), positive)


def _correlation(a: Floats, b: Floats) -> float:
    spread = a.std() * b.std()
    return float(((a - a.mean()) * (b - b.mean())).mean() / spread) if spread else float("nan")


def _auc_of_ranks(ranks: Floats, positive: NDArray[np.bool_]) -> float:
    n = int(positive.sum())
    others = len(positive) - n
    if not n or not others:
        return float("nan")
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * others))


def _doubt(name: str, seen: Observations) -> Floats:
    """The predictor, with its sign such that larger is less confident."""
    values = seen.predictors[name]
    return -values if name in CONFIDENT else values


def _predictor(name: str, seen: Observations, scores: list[Estimate], draws: _Draws) -> Predictor:
    predicted = _predicted(_doubt(name, seen), seen)
    base = _held_out(seen, lambda train, test: np.full(test.sum(), seen.accepted[train].mean()))
    correlation, correlation_overlap, area = scores
    return Predictor(
        name=name,
        meaning=PREDICTORS[name],
        correlation=correlation,
        correlation_overlap=correlation_overlap,
        auc=area,
        brier=float(((predicted - seen.accepted) ** 2).mean()),
        brier_base=float(((base - seen.accepted) ** 2).mean()),
        bins=_bins(seen.predictors[name], seen, draws),
        calibration=[
            {
                "n": len(part),
                "predicted": float(predicted[part].mean()),
                "seen": float(seen.accepted[part].mean()),
            }
            for part in _tenths(predicted)
        ],
    )


def _tenths(values: Floats) -> list[NDArray[np.intp]]:
    parts = np.array_split(np.argsort(values, kind="stable"), BINS)
    return [part for part in parts if len(part)]


def _bins(values: Floats, seen: Observations, draws: _Draws) -> list[dict[str, Any]]:
    return [
        {
            "n": len(part),
            "low": _none_if_not_finite(values[part[0]]),
            "median": _none_if_not_finite(np.median(values[part])),
            "high": _none_if_not_finite(values[part[-1]]),
            "alpha": asdict(mean_estimate(seen.accepted[part], seen.prompt[part], draws)),
            "overlap": float(seen.overlap[part].mean()),
        }
        for part in _tenths(values)
    ]


def _predicted(doubt: Floats, seen: Observations) -> Floats:
    """A logistic function of the ranks of doubt, fitted without the prompt it predicts."""
    x = rankdata(doubt) / len(doubt) - 0.5  # ranks: a margin may be infinite

    def fit(train: NDArray[np.bool_], test: NDArray[np.bool_]) -> Floats:
        level, slope = _logistic(x[train], seen.accepted[train])
        predicted: Floats = expit(level + slope * x[test])
        return predicted

    return _held_out(seen, fit)


def _held_out(
    seen: Observations, fit: Callable[[NDArray[np.bool_], NDArray[np.bool_]], Floats]
) -> Floats:
    """The predictions of `fit` for each fold of prompts, from the other folds."""
    found = np.full(len(seen), seen.accepted.mean())
    for fold in range(FOLDS):
        test = seen.prompt % FOLDS == fold
        if test.any() and not test.all():
            found[test] = fit(~test, test)
    return found


def _logistic(x: Floats, y: NDArray[np.bool_]) -> tuple[float, float]:
    """Level and slope by Newton's method, with a small penalty so that it always converges."""
    design = np.stack([np.ones_like(x), x], axis=1)
    weights = np.zeros(2)
    for _ in range(25):
        chance = expit(design @ weights)
        gradient = design.T @ (y - chance) - 1e-3 * weights
        curvature = (design.T * (chance * (1 - chance))) @ design + 1e-3 * np.eye(2)
        weights = weights + np.linalg.solve(curvature, gradient)
    return float(weights[0]), float(weights[1])


def _groups(seen: Observations, by: NDArray[Any], draws: _Draws) -> list[dict[str, Any]]:
    found = []
    for value in np.unique(by):
        part = seen.take(by == value)
        doubt = _doubt("draft_entropy", part)
        found.append(
            {
                "group": value.item(),
                "n": len(part),
                "alpha": asdict(mean_estimate(part.accepted, part.prompt, draws)),
                "overlap": float(part.overlap.mean()),
                "auc_draft_entropy": _none_if_not_finite(auc(doubt, ~part.accepted)),
            }
        )
    return found


def _naive(naive: Observations) -> Mapping[str, Any]:
    """The results of the wrong labels, without intervals: they estimate nothing."""
    return {
        "n_tokens": len(naive),
        "alpha": float(naive.accepted.mean()),
        "auc": {
            name: _none_if_not_finite(auc(_doubt(name, naive), ~naive.accepted))
            for name in PREDICTORS
        },
        "correlation": {
            name: _none_if_not_finite(rank_correlation(naive.predictors[name], naive.accepted))
            for name in PREDICTORS
        },
    }


def _none_if_not_finite(value: Any) -> float | None:
    """A JSON value; JSON has no infinity, which is the margin if only one token is possible."""
    return float(value) if np.isfinite(value) else None
