"""A trimmed model is the whole one without some entries: same rows, same merges, same roles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import Kind

from specx.errors import BackendError, ModelError, SpecxError, UsageError
from specx.runtime.backend import LoadOptions, LogitsBackend, get_backend
from specx.runtime.metadata import read_metadata, read_strings
from specx_backends import gguf_trimming, llamacpp_trimming
from specx_backends.gguf_rewriting import rewrite
from specx_backends.gguf_trimming import (
    Vocabulary,
    choose,
    is_within,
    parts_of,
    trimmed_values,
    way_to,
)
from specx_backends.llamacpp import backend as llamacpp
from specx_backends.llamacpp_library import LOG

PROMPT = "def add(a, b):\n    return a + b  # the sum of two numbers, naïve\n\n\nclass Café:\n"
AWKWARD = ["", " ", "\n\n  \n", "x" * 300, "year 2024, 3.14"]
AWKWARD += ["naïve café 😀 👨‍👩‍👧", "日本語 हिन्दी"]
TEXTS = ["xyzw ab", "class Widget(object):\n    colour = None\n" * 9, "日本語の鳥"]
"""To rank entries by, so that those kept are not just the first."""
KEEP = {"tiny": 272, "demo_drafter": 1024, "smollm2": 8000, "gemma": 8000}
"""Multiples of 16: llama.cpp multiplies matrices of other heights by other kernels."""
WORDS = [*"▁a xy zw yz xyzw ▁xyzw ab abc ▁ab de ▁abc cd bc ▁b ▁c th ▁the".split(), "e" * 300]
"""Eighteen; merging reaches all but the last two: for ▁the, ▁th would be needed."""


WARNING = 3  # of ggml_log_level; 4 is worse, 5 goes on


@dataclass(frozen=True)
class Pair:
    """A model, and its trimmed copy."""

    whole: Path
    small: Path

    @property
    def kept(self) -> list[int]:
        """The whole model's ids of the small one's entries; texts are unique in a GGUF file."""
        ids = {token: i for i, token in enumerate(tokens_of(self.whole))}
        return [ids[token] for token in tokens_of(self.small)]


def tokens_of(path: Path) -> list[bytes]:
    return read_strings(read_metadata(path), "tokenizer.ggml.tokens")


def write_trimmed(whole: Path, small: Path, keep: int, texts: list[str] | None = None) -> Pair:
    trimmed = llamacpp.trim(str(whole), keep, texts)
    small.write_bytes(b"".join(trimmed.chunks()))
    assert small.stat().st_size == trimmed.n_bytes
    return Pair(whole, small)


def tiny_sentencepiece(path: Path, **put: Any) -> Path:
    """A tiny llama with an output matrix and bias of its own, and words of several letters."""
    tokens = [*tiny_gguf.TOKENS, *WORDS]
    draw = np.random.default_rng(1)
    tensors = tiny_gguf.llama_tensors()
    for name in ("token_embd.weight", "output.weight"):
        tensors[name] = draw.normal(size=(len(tokens), tiny_gguf.WIDTH)).astype(np.float32)
    scores = [-float(i) for i in range(len(tokens))]
    fields = {
        "llama.vocab_size": tiny_gguf.number(len(tokens)),
        "tokenizer.ggml.tokens": tiny_gguf.strings(tokens),
        "tokenizer.ggml.scores": (scores, Kind.ARRAY, Kind.FLOAT32),
        "tokenizer.ggml.token_type": (
            [*tiny_gguf.KINDS, *[1] * len(WORDS)],
            Kind.ARRAY,
            Kind.INT32,
        ),
        "tokenizer.huggingface.json": tiny_gguf.text("{}"),
        **put,
    }
    return tiny_gguf.write(path, tensors=tensors, put=fields)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_sentencepiece(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module", params=KEEP)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    name: str = request.param
    small = tmp_path_factory.mktemp(name) / "small.gguf"
    return write_trimmed(request.getfixturevalue(name), small, KEEP[name], TEXTS)


Models = tuple[LogitsBackend, LogitsBackend, list[int]]


@pytest.fixture(scope="module")
def models(pair: Pair) -> Iterator[Models]:
    with loaded(pair) as (whole, small):
        yield whole, small, pair.kept


class loaded:
    """Both models of a pair."""

    def __init__(self, pair: Pair, backend: str = "llamacpp") -> None:
        options = LoadOptions(n_ctx=512)
        factory = get_backend(backend)
        self.models = tuple(factory.load(str(p), options) for p in (pair.whole, pair.small))

    def __enter__(self) -> tuple[LogitsBackend, ...]:
        return self.models

    def __exit__(self, *_: object) -> None:
        for model in self.models:
            model.close()


# What is wrong with a trimmed model, found by running it beside the whole one


def wrong_rows(whole: LogitsBackend, small: LogitsBackend, kept: list[int]) -> list[str]:
    """Logits of the same text that differ by a bit."""
    ids = small.tokenizer.encode(PROMPT, add_special=True, parse_special=False)
    for model in (whole, small):
        model.truncate(0)
    expected = whole.forward([kept[i] for i in ids], len(ids))[:, kept]
    found = small.forward(ids, len(ids))
    return [] if np.array_equal(found, expected) else [f"logits: {found}, not {expected}"]


def wrong_text(whole: LogitsBackend, small: LogitsBackend, kept: list[int]) -> list[str]:
    """Tokens and texts that the small tokenizer does not give back."""
    ours, theirs = small.tokenizer, whole.tokenizer
    wrong = []
    for token, old in enumerate(kept):
        text = theirs.token_bytes(old)
        if ours.token_bytes(token) != text or ours.token_text(token) != theirs.token_text(old):
            wrong.append(f"token {token} is {ours.token_text(token)!r}")
        elif alone(theirs, text) == [old] and alone(ours, text) != [token]:
            wrong.append(f"{text!r} becomes {alone(ours, text)}, not {token}")
    for sample in [PROMPT, *AWKWARD]:
        if spelled(ours, sample) != spelled(theirs, sample):
            wrong.append(f"{sample!r} becomes {spelled(ours, sample)!r}")
    return wrong


def alone(tokenizer: Any, text: bytes) -> list[int]:
    """Ids of a text; none of a piece of a character, where the runtime takes only whole ones."""
    try:
        ids: list[int] = tokenizer.encode(
            text.decode("utf-8", "surrogateescape"), add_special=False, parse_special=False
        )
    except BackendError:
        return []
    return ids


def spelled(tokenizer: Any, text: str) -> bytes:
    return b"".join(map(tokenizer.token_bytes, alone(tokenizer, text.encode())))


def wrong_roles(whole: LogitsBackend, small: LogitsBackend, kept: list[int]) -> list[str]:
    """Special tokens that are others than the whole model's."""
    wrong = []
    for name in ("bos_id", "eos_id"):
        token, old = getattr(small.tokenizer, name), getattr(whole.tokenizer, name)
        if (None if token is None else kept[token]) != old:
            wrong.append(f"{name} is {token}")
    if {kept[token] for token in small.tokenizer.eog_ids} != whole.tokenizer.eog_ids:
        wrong.append(f"end tokens are {small.tokenizer.eog_ids}")
    if small.tokenizer.chat_template != whole.tokenizer.chat_template:
        wrong.append("the chat template differs")
    return wrong


def wrong_merges(small: Path) -> list[str]:
    """Merges of texts that are no tokens; tokens that no merges reach."""
    vocabulary = Vocabulary(read_metadata(small))
    wrong = [
        f"merge {merge!r}"
        for merge in vocabulary.merges
        if not {*parts_of(merge), "".join(parts_of(merge))} <= vocabulary.ids.keys()
    ]
    rank, always = vocabulary.rank(), vocabulary.always()
    wrong += [
        f"no way to {text!r}"
        for token, text in enumerate(vocabulary.texts)
        if token not in always and not way_to(text, rank, vocabulary.ids)
    ]
    return wrong


def test_logits_are_the_whole_models_rows_bit_for_bit(models: Models) -> None:
    assert wrong_rows(*models) == []


def test_texts_come_back_and_tokens_are_found_again(models: Models) -> None:
    assert wrong_text(*models) == []


def test_special_tokens_keep_their_roles(models: Models) -> None:
    assert wrong_roles(*models) == []


def test_every_merge_is_of_tokens_and_every_token_is_reached(pair: Pair) -> None:
    assert len(tokens_of(pair.small)) == KEEP.get(pair.whole.stem, len(tokens_of(pair.small)))
    assert wrong_merges(pair.small) == []


@pytest.mark.parametrize("name", ["demo_drafter", "smollm2"])
def test_transformers_gives_the_whole_models_rows_too(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    pair = write_trimmed(request.getfixturevalue(name), tmp_path / "small.gguf", KEEP[name])
    with loaded(pair, "hf") as (whole, small):
        both = whole, small, pair.kept
        assert wrong_rows(*both) + wrong_text(*both) + wrong_roles(*both) == []


def keep_warning(lines: set[str], line: str) -> None:
    if LOG._level >= WARNING:
        lines.add(line)


def test_llamacpp_complains_of_nothing_new(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[Path, set[str]] = {}
    for path in (pair.whole, pair.small):
        lines = said.setdefault(path, set())
        with monkeypatch.context() as patch:
            patch.setattr(LOG, "_keep", partial(keep_warning, lines))
            llamacpp.load(str(path), LoadOptions(n_ctx=64)).close()
    whole, small = ({re.sub(r"\d+", "N", line) for line in lines} for lines in said.values())
    assert small <= whole


# Faults that were planted must be found


def test_rows_that_are_shifted_by_one_are_found(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(header: Any, values: Any, rows: Any, size: Any) -> Any:
        shifted = np.minimum(rows["output.weight"] + 1, rows["output.weight"].max())
        return rewrite(header, values, {**rows, "output.weight": shifted}, size)

    monkeypatch.setattr(llamacpp_trimming, "rewrite", wrong)
    pair = write_trimmed(tiny, tmp_path / "small.gguf", KEEP["tiny"])
    with loaded(pair) as (whole, small):
        assert wrong_rows(whole, small, pair.kept) != []


def test_merges_that_are_not_filtered_are_found(
    tmp_path: Path, demo_drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_trimming, "is_within", lambda merge, texts: True)
    pair = write_trimmed(demo_drafter, tmp_path / "small.gguf", 1024)
    assert wrong_merges(pair.small) != []
    with loaded(pair) as (whole, small):
        assert wrong_text(whole, small, pair.kept) != []


def test_an_end_token_that_is_not_remapped_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eos = tiny_gguf.number(len(tiny_gguf.TOKENS) + 1)
    whole = tiny_sentencepiece(tmp_path / "tiny.gguf", **{"tokenizer.ggml.eos_token_id": eos})

    def wrong(vocabulary: Any, kept: Any) -> Any:
        return {
            **trimmed_values(vocabulary, kept),
            "tokenizer.ggml.eos_token_id": gguf_trimming.number(270),
        }

    pair = write_trimmed(whole, tmp_path / "right.gguf", 280)
    with loaded(pair) as (model, small):
        assert wrong_roles(model, small, pair.kept) == []
    monkeypatch.setattr(llamacpp_trimming, "trimmed_values", wrong)
    pair = write_trimmed(whole, tmp_path / "small.gguf", 280)
    with loaded(pair) as (model, small):
        assert wrong_roles(model, small, pair.kept) != []


# Which entries are kept


class Letters:
    """A byte-pair tokenizer of few letters."""

    def __init__(self, merges: list[tuple[str, str]], texts: list[str]) -> None:
        self.merges, self.texts = merges, texts
        self.ids = {text: i for i, text in enumerate(texts)}

    def rank(self) -> Callable[[str, str], float]:
        places = {merge: place for place, merge in enumerate(self.merges)}
        return lambda left, right: places.get((left, right), float("inf"))


@st.composite
def tokenizers(draw: st.DrawFn) -> Letters:
    """Merges in any order, also several to one text; and texts that no merge makes."""
    texts = [*"abc"]
    merges: list[tuple[str, str]] = []
    for _ in range(draw(st.integers(0, 12))):
        merge = draw(st.sampled_from(texts)), draw(st.sampled_from(texts))
        merges.append(merge)
        if "".join(merge) not in texts:
            texts.append("".join(merge))
    extra = draw(st.lists(st.text("abc", min_size=1, max_size=5), max_size=3))
    texts += [text for text in dict.fromkeys(extra) if text not in texts]
    return Letters(list(dict.fromkeys(draw(st.permutations(merges)))), texts)


@given(tokenizers(), st.data())
@settings(max_examples=300, deadline=None)
def test_any_choice_is_closed_and_merged_as_before(whole: Letters, data: st.DataObject) -> None:
    always = set(range(3))
    order = data.draw(st.permutations(range(len(whole.texts))))
    keep = data.draw(st.integers(3, len(whole.texts)))
    kept = choose(whole, always, order, keep).tolist()  # type: ignore[arg-type]
    assert always <= set(kept)
    assert len(kept) <= keep
    texts = [whole.texts[token] for token in kept]
    merges = [merge for merge in whole.merges if is_within(merge, texts)]
    assert all({*merge, "".join(merge)} <= set(texts) for merge in merges)
    small = Letters(merges, texts)
    for token, text in enumerate(texts):
        assert token in way_to(text, small.rank(), small.ids)
        assert {small.texts[i] for i in way_to(text, small.rank(), small.ids)} == {
            whole.texts[i] for i in way_to(text, whole.rank(), whole.ids)
        }


CHANGED = {f"tokenizer.ggml.{name}" for name in ("tokens", "scores", "token_type", "merges")}


@pytest.mark.parametrize("name", ["tiny", "demo_drafter"])
def test_another_reader_finds_all_else_unchanged(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pair = write_trimmed(request.getfixturevalue(name), tmp_path / "small.gguf", KEEP[name], TEXTS)
    whole, small = gguf.GGUFReader(pair.whole), gguf.GGUFReader(pair.small)
    changed = {key for key in CHANGED | small.fields.keys() if key.endswith("vocab_size")}
    changed |= {*CHANGED, "GGUF.kv_count", "tokenizer.huggingface.json"}
    assert set(whole.fields) - changed == set(small.fields) - changed
    for key in set(whole.fields) - changed:
        assert whole.fields[key].contents() == small.fields[key].contents()
    for key in CHANGED & whole.fields.keys() - {"tokenizer.ggml.merges"}:
        values = whole.fields[key].contents()
        assert small.fields[key].contents() == [values[token] for token in pair.kept]
    for ours, theirs in zip(small.tensors, whole.tensors, strict=True):
        by_entry = ours.name in ("token_embd.weight", "output.weight")
        rows = theirs.data[pair.kept] if by_entry else theirs.data
        assert (ours.name, ours.tensor_type) == (theirs.name, theirs.tensor_type)
        np.testing.assert_array_equal(ours.data, rows)


def test_rarer_parts_by_entry_follow(tmp_path: Path) -> None:
    tokens, kinds = [*tiny_gguf.TOKENS], [*tiny_gguf.KINDS]
    kinds[280], kinds[281] = 4, 5  # user-defined; standing for nothing
    tokens[282], kinds[282] = "<unused0>", 3  # standing for nothing too
    tokens[283] = "<|im_end|>"  # a special token by its text only
    bias = np.arange(len(tokens), dtype=np.float32)
    path = tiny_gguf.write(
        tmp_path / "odd.gguf",
        tensors={"output.bias": bias, **tiny_gguf.llama_tensors()},
        put={
            "tokenizer.ggml.tokens": tiny_gguf.strings(tokens),
            "tokenizer.ggml.token_type": (kinds, Kind.ARRAY, Kind.INT32),
            "tokenizer.ggml.suppress_tokens": ([5, 262, 285], Kind.ARRAY, Kind.INT32),
            "tokenizer.ggml.mask_token_id": tiny_gguf.number(285),
        },
    )
    pair = write_trimmed(path, tmp_path / "small.gguf", 263)
    assert pair.kept == [*range(260), 280, 283, 285]
    small, whole = gguf.GGUFReader(pair.small), gguf.GGUFReader(path)
    assert small.fields["tokenizer.ggml.suppress_tokens"].contents() == [5, 262]
    assert small.fields["tokenizer.ggml.mask_token_id"].contents() == 262
    for ours, theirs in zip(small.tensors[:2], whole.tensors, strict=False):
        assert ours.name in ("output.bias", "token_embd.weight")
        np.testing.assert_array_equal(ours.data, theirs.data[pair.kept])
    full = write_trimmed(path, tmp_path / "full.gguf", 286)
    assert full.kept == [*range(281), 283, 284, 285]


@pytest.mark.parametrize("kinds", [[1, 1, 1, *tiny_gguf.KINDS[3:]], None])
def test_special_tokens_that_a_file_does_not_name_stay_where_they_are(
    tmp_path: Path, kinds: list[int] | None
) -> None:
    silent = dict.fromkeys(["tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"])
    given = None if kinds is None else (kinds, Kind.ARRAY, Kind.INT32)
    put = {"tokenizer.ggml.token_type": given, **silent}
    pair = write_trimmed(tiny_gguf.write(tmp_path / "a.gguf", put=put), tmp_path / "b.gguf", 259)
    assert pair.kept == [*range(259)]
    with loaded(pair) as (whole, small):
        assert wrong_roles(whole, small, pair.kept) == []


def test_a_merge_goes_with_its_parts() -> None:
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]
    whole = Letters(merges, ["a", "b", "c", "ab", "bc", "abc"])
    kept = choose(whole, {0, 1, 2}, [5], 6).tolist()  # type: ignore[arg-type]
    assert kept == [0, 1, 2, 3, 5]
    texts = {whole.texts[token] for token in kept}
    assert [merge for merge in merges if is_within(merge, texts)] == [("a", "b"), ("ab", "c")]


def test_what_a_text_uses_most_comes_first(demo_drafter: Path, tmp_path: Path) -> None:
    plain = write_trimmed(demo_drafter, tmp_path / "plain.gguf", 400)
    ranked = write_trimmed(demo_drafter, tmp_path / "ranked.gguf", 400, ["ValueError " * 9])
    with loaded(plain) as (whole, small):
        id_of = alone(whole.tokenizer, b" ValueError")
        assert len(id_of) == 1
        assert len(alone(small.tokenizer, b" ValueError")) > 1
    with loaded(ranked) as (_, small):
        assert len(alone(small.tokenizer, b" ValueError")) == 1
    assert plain.kept[:300] == list(range(300))
    trimmed = llamacpp.trim(str(demo_drafter), 400, ["ValueError " * 9])
    assert trimmed.coverage == 1
    assert (trimmed.n_whole, trimmed.n_kept) == (2048, 400)


def test_a_token_that_merging_does_not_reach_is_dropped(tiny: Path, tmp_path: Path) -> None:
    pair = write_trimmed(tiny, tmp_path / "small.gguf", len(tokens_of(tiny)))
    dropped = set(tokens_of(tiny)) - set(tokens_of(pair.small))
    assert dropped == {b"e" * 300, "▁the".encode()}


def test_the_copy_of_the_whole_tokenizer_is_dropped_and_the_size_told(pair: Pair) -> None:
    values = read_metadata(pair.small).values
    assert "tokenizer.huggingface.json" not in values
    assert values["specx.trim.vocab_size"] == len(tokens_of(pair.whole))
    n_vocab = values.get(f"{values['general.architecture']}.vocab_size")
    assert n_vocab in (None, len(tokens_of(pair.small)))


def test_a_trimmed_model_can_be_trimmed_again(tiny: Path, tmp_path: Path) -> None:
    once = write_trimmed(tiny, tmp_path / "once.gguf", 288).small
    again = write_trimmed(once, tmp_path / "again.gguf", 272).small
    direct = write_trimmed(tiny, tmp_path / "direct.gguf", 272).small
    assert tokens_of(again) == tokens_of(direct)
    assert read_metadata(again).values["specx.trim.vocab_size"] == 288


# What is refused


def test_a_size_out_of_range_is_refused(tiny: Path) -> None:
    with pytest.raises(UsageError, match="the 259 special and byte tokens .* pass 259 or more"):
        llamacpp.trim(str(tiny), 258, None)
    with pytest.raises(UsageError, match="has 304 vocabulary entries; pass fewer"):
        llamacpp.trim(str(tiny), 305, None)
    with pytest.raises(UsageError, match="empty"):
        llamacpp.trim(str(tiny), 270, ["", ""])


def without(name: str) -> dict[str, np.ndarray[Any, Any]]:
    return {key: data for key, data in tiny_gguf.llama_tensors().items() if key != name}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"put": {"tokenizer.ggml.model": tiny_gguf.text("rwkv")}}, "of kind 'rwkv'"),
        ({"put": {"split.count": (2, Kind.UINT16)}}, "one of 2 files"),
        ({"put": {"tokenizer.ggml.scores": None}}, r"lacks tokenizer\.ggml\.scores"),
        ({"tensors": without("token_embd.weight")}, r"lacks the tensor token_embd\.weight"),
        ({"tensors": {**tiny_gguf.llama_tensors(), "output.weight": np.ones((9, 32), "f")}},
         r"output\.weight has shape \(32, 9\)"),
        ({"tensors": {**tiny_gguf.llama_tensors(), "other.weight": np.ones((286, 32), "f")}},
         r"tensor other\.weight too seems"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_trimmed_is_refused(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    path = tiny_gguf.write(tmp_path / "odd.gguf", **change)
    with pytest.raises(ModelError, match=reason):
        llamacpp.trim(str(path), 270, None)


def test_a_file_that_was_cut_is_refused(tiny: Path, tmp_path: Path) -> None:
    data = tiny.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in (len(data) - 64, len(data) // 2, 100):
        cut.write_bytes(data[:size])
        with pytest.raises(SpecxError, match=r"cut\.gguf"):
            llamacpp.trim(str(cut), 270, None)


def test_memory_holds_a_chunk_at_a_time(
    demo_drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specx_backends.gguf_rewriting.CHUNK", 1000)
    trimmed = llamacpp.trim(str(demo_drafter), 1024, None)
    head, *chunks = trimmed.chunks()
    assert max(map(len, chunks)) <= 1256  # a row of 128 numbers of two bytes more
    assert len(head) + sum(map(len, chunks)) == trimmed.n_bytes
