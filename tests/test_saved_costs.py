"""Costs that `specx tune` saved: found by content, used by auto, ignored when they cannot be."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import EASE, F16, PAIRS, Run, World, auto, curve, profile

from specx.drafters import get_drafter
from specx.drafters.base import POSITIONS
from specx.drafters.model import ModelDrafter
from specx.errors import UsageError
from specx.runtime.backend import LoadOptions, LogitsBackend, get_backend
from specx.runtime.folders import cache_folder
from specx.runtime.identity import HEAD, SAMPLE, identity
from specx.runtime.uncached import Uncached
from specx.schedule.costs.curve import Profile, ProfileRecord
from specx.schedule.costs.saved import SavedCosts, model_used, read_saved, saved_files
from specx.session.pair import Pair

TABLE = """
vocabulary = ["<s>", "</s>", "a", " b"]
bos = "<s>"
eog = ["</s>"]
[[row]]
next = { a = 0.5, " b" = 0.5 }
"""

Opened = Callable[..., Pair]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "profiles"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens a pair of toys in files of these names and contents."""
    models: list[LogitsBackend] = []

    def load(name: str, content: str) -> LogitsBackend:
        (tmp_path / name).write_text(content)
        models.append(get_backend("toy").load(str(tmp_path / name), LoadOptions()))
        return models[-1]

    def pair(verifier: str = TABLE, drafter: str | None = TABLE + "# d\n") -> Pair:
        drafting = [] if drafter is None else [load("d.toml", drafter)]
        return Pair(load("v.toml", verifier), *drafting)

    yield pair
    for model in models:
        model.close()


def record(verifier: Any = F16, n_past: int = 100, drafter: float | None = 0.25) -> ProfileRecord:
    step = None if drafter is None else replace(curve([drafter]), n_past=n_past)
    return ProfileRecord(core=0.0, verifier=replace(verifier, n_past=n_past), drafter=step)


def costs_of(pair: Pair, *records: ProfileRecord, **changes: Any) -> SavedCosts:
    used = [model_used(model) for model in pair.models]
    verifier, drafter = (*used, None)[:2]
    assert verifier is not None
    given = list(records) or [record(drafter=0.25 if pair.drafter else None)]
    return SavedCosts(verifier=verifier, drafter=drafter, profiles=given, **changes)


def test_what_was_saved_is_found_by_the_same_models_and_by_no_others(opened: Opened) -> None:
    costs_of(opened()).save()
    assert opened().costs().source == "profile"
    assert opened(drafter=None).costs().source == "table"
    assert opened(drafter=TABLE + "# another\n").costs().source == "table"
    assert opened(verifier=TABLE + "# another\n").costs().source == "table"


def test_a_moved_file_keeps_its_profile(opened: Opened, tmp_path: Path) -> None:
    costs_of(opened(drafter=None)).save()
    (tmp_path / "v.toml").rename(tmp_path / "moved.toml")
    moved = Pair(get_backend("toy").load(str(tmp_path / "moved.toml"), LoadOptions()))
    assert moved.saved_costs is not None
    moved.close()


@pytest.mark.parametrize("name", ["backend", "threads", "devices", "settings", "identity"])
def test_each_thing_that_a_cost_depends_on_is_part_of_the_id(opened: Opened, name: str) -> None:
    saved = costs_of(opened())
    others: dict[str, Any] = {
        "backend": "hf",
        "threads": 7,
        "devices": ("cuda",),
        "settings": {"n_gpu_layers": "3"},
        "identity": "0",
    }
    other = replace(saved, verifier=replace(saved.verifier, **{name: others[name]}))
    assert other.id != saved.id
    same = replace(saved, verifier=replace(saved.verifier, name="n", file="f", versions={}))
    assert same.id == saved.id


def test_an_explicit_profile_comes_before_a_saved_one(opened: Opened) -> None:
    costs_of(opened()).save()
    given = Profile(verifier=curve([3.0, 4.0]), drafter=curve([1.0]))
    pair = opened()
    assert pair.costs(given).plain == pytest.approx(3.0)
    assert pair.costs().plain == pytest.approx(1.0)
    assert pair.costs_by.startswith("profile ")


def test_without_a_cache_the_costs_are_others_and_none_are_used(opened: Opened) -> None:
    pair = opened(drafter=None)
    costs_of(pair).save()
    uncached = Pair(Uncached(pair.verifier))
    assert uncached.costs().source == "table"
    assert uncached.costs_by == "the shipped table"


def test_what_is_saved_is_read_back_as_it_was(opened: Opened) -> None:
    saved = costs_of(opened(), acceptance={"code": [0.5, 0.25]}, advice="Use it.")
    assert read_saved(saved.save()) == saved


# The context's length


def test_costs_grow_with_the_context_between_and_beyond_the_measured_lengths(
    opened: Opened,
) -> None:
    short, long = record(curve([1.0, 2.0]), 100), record(curve([2.0, 4.0]), 200)
    saved = costs_of(opened(), short, long)
    for n_past, one in ((0, 1.0), (100, 1.0), (150, 1.5), (200, 2.0), (300, 3.0)):
        assert saved.at(n_past).verifier(1) == pytest.approx(one)
        assert saved.at(n_past).verifier(2) == pytest.approx(2 * one)
    assert saved.at(10**6).verifier(1) == pytest.approx(3.0)  # no farther than that


def test_three_lengths_are_joined_one_by_one(opened: Opened) -> None:
    lengths = [record(curve([one, 2 * one]), n) for n, one in ((100, 1.0), (200, 2.0), (400, 3.0))]
    saved = costs_of(opened(), *lengths)
    assert [saved.at(n).verifier(1) for n in (150, 300, 400)] == pytest.approx([1.5, 2.5, 3.0])


def test_wide_passes_measured_at_one_length_alone_grow_with_their_width(opened: Opened) -> None:
    short, long = record(curve([1, 2, 5], [1, 2, 8]), 100), record(curve([1, 3], [1, 2]), 200)
    assert costs_of(opened(), short, long).at(200).verifier(8) == pytest.approx(5 + 4 * 1)


def test_noise_never_makes_a_longer_context_cheaper(opened: Opened) -> None:
    saved = costs_of(opened(), record(curve([1.0, 2.0]), 100), record(curve([0.9, 1.9]), 200))
    assert saved.at(800).verifier(1) == pytest.approx(1.0)


def test_the_drafter_starts_from_the_measured_acceptance(opened: Opened) -> None:
    rates = {"code": [0.9, 0.8], "prose": [0.5, 0.4]}
    pair = opened()
    costs_of(pair, acceptance=rates).save()
    drafter = get_drafter("model").make(pair.parts)
    assert list(drafter.prior) == pytest.approx([0.7, *[0.6] * (len(POSITIONS) - 1)])


def test_without_a_profile_the_drafter_starts_from_a_guess(opened: Opened) -> None:
    assert list(get_drafter("model").make(opened().parts).prior) == list(ModelDrafter.prior)


def test_a_session_asks_for_the_costs_at_its_prompt_s_length(opened: Opened) -> None:
    pair = opened()
    costs_of(pair, record(curve([1.0] * 33), 4), record(curve([2.0] * 33), 8)).save()
    from specx import Session

    with Session(pair) as session:
        auto = session._auto_for(False, 8)
    assert auto.costs.plain == pytest.approx(2.0)


# Stale and corrupt

BROKEN: dict[str, tuple[Callable[[Any], str], str]] = {
    "empty": (lambda r: "", "is not JSON"),
    "cut": (lambda r: json.dumps(r)[:100], "is not JSON"),
    "binary": (lambda r: "\ud800", "is not UTF-8"),
    "a list": (lambda r: "[]", "holds no costs"),
    "another format": (lambda r: json.dumps({**r, "specx_costs": 2}), "has format 2"),
    "no profiles": (lambda r: json.dumps({**r, "profiles": []}), "there are none"),
    "wrong type": (lambda r: json.dumps({**r, "verifier": 3}), "field verifier"),
    "negative": (
        lambda r: json.dumps(r).replace('"seconds": [1', '"seconds": [-1'),
        "profiles[0].verifier.seconds[0]",
    ),
    "not a number": (
        lambda r: json.dumps(r).replace('"seconds": [1', '"seconds": [NaN, 1'),
        "finite",
    ),
    "wrong length": (
        lambda r: json.dumps(r).replace('"seconds": [1.0, ', '"seconds": ['),
        "values of",
    ),
    "no drafter": (
        lambda r: json.dumps({**r, "profiles": [{**r["profiles"][0], "drafter": None}]}),
        "drafter",
    ),
    "falling lengths": (
        lambda r: json.dumps({**r, "profiles": r["profiles"] * 2}),
        "context lengths must rise",
    ),
    "of other models": (
        lambda r: json.dumps({**r, "verifier": {**r["verifier"], "identity": "x"}}),
        "other models",
    ),
    "an older runtime": (
        lambda r: json.dumps({**r, "verifier": {**r["verifier"], "versions": {"numpy": "0.1"}}}),
        "was measured with numpy 0.1",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_stale_or_corrupt_profile_is_ignored_with_one_line(opened: Opened, name: str) -> None:
    damage, reason = BROKEN[name]
    path = costs_of(opened()).save()
    found = json.loads(path.read_text())
    path.write_bytes(damage(found).encode("utf-8", "surrogatepass"))
    pair = opened()
    with pytest.warns(UserWarning, match="saved costs are ignored") as warned:
        assert pair.costs().source == "table"
    assert pair.costs_by == "the shipped table"  # asked again, it says nothing again
    (warning,) = warned
    line = str(warning.message)
    assert line.startswith("saved costs are ignored: profile ")
    assert reason in line
    assert "; " in line
    assert "\n" not in line


def test_a_folder_in_the_place_of_a_profile_is_ignored_too(opened: Opened) -> None:
    path = costs_of(opened()).save()
    path.unlink()
    path.mkdir()
    with pytest.warns(UserWarning, match="saved costs are ignored"):
        assert opened().costs().source == "table"


def test_a_cache_folder_that_cannot_be_made_is_one_error(
    opened: Opened, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.write_text("a file in its place")
    with pytest.raises(UsageError, match="SPECX_CACHE"):
        costs_of(opened()).save()
    assert opened().costs().source == "table"


def test_saving_again_replaces_and_leaves_nothing_else(opened: Opened, cache: Path) -> None:
    saved = costs_of(opened())
    saved.save()
    replace(saved, advice="newer").save()
    assert [path.name for path in cache.iterdir()] == [f"{saved.id}.json"]
    assert read_saved(*saved_files()).advice == "newer"


def test_the_tests_do_not_see_their_developer_s_profiles() -> None:
    assert "cache" in cache_folder().parts


# Identity


def test_the_identity_is_of_the_content_not_of_the_name(tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes(3 * HEAD)
    first, copy = tmp_path / "a", tmp_path / "b"
    first.write_bytes(data)
    copy.write_bytes(data)
    assert identity(first) == identity(copy)
    for place in (0, HEAD - 1, HEAD, len(data) - SAMPLE, len(data) - 1):
        copy.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert identity(first) != identity(copy), place
    copy.write_bytes(data + b"\0")
    assert identity(first) != identity(copy)


def test_a_folder_is_all_its_files_and_nothing_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    before = identity(folder)
    (folder / "weights").write_text("w")
    assert identity(folder) != before
    assert identity(tmp_path / "missing") is None


# Auto


def always(ease: float) -> Callable[[int], float]:
    return lambda length: ease


@pytest.mark.parametrize("name", PAIRS)
def test_auto_from_a_profile_reaches_its_steady_choice_within_16_tokens(name: str) -> None:
    """From there on a token costs what it does after 400, but for the worlds' own noise.

    The profile has the costs and the drafter's mean acceptance rate. Costs are compared, not
    lengths, since on a flat stretch of a curve several lengths are equally good.
    """
    ratios = []
    for ease in ("poor", "mid", "good"):
        places = EASE[ease] + np.random.default_rng(0).normal(size=1000)
        rate = float(np.mean(1 / (1 + np.exp(-places))))
        first, later = [], []
        for seed in range(8):
            world = World(profile(name), always(EASE[ease]), 1.0, seed=seed)
            run = Run(world, auto(profile(name), live=True))
            run.drafter.prior = [rate] * len(POSITIONS)
            run.until(64 + 900)
            first.append(run.seconds(16, 272))
            later.append(run.seconds(400, 900))
        ratios.append(float(np.mean(first) / np.mean(later)))
    assert max(ratios) < 1.1
    assert np.median(ratios) < 1.06


def test_reading_what_was_saved_raises_no_warning(opened: Opened) -> None:
    costs_of(opened()).save()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert opened().costs(n_past=50).source == "profile"
