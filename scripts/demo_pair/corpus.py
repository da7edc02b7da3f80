"""The text to learn from: Python source of the running interpreter's standard library."""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import textwrap
import tokenize
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
VOCABULARY = 2048
HELD_OUT_PERCENT = 4

NOT_THE_LIBRARY = frozenset({"site-packages", "test", "tests", "idle_test"})
# Tables and build settings are data: they would teach digits, not code.
LEFT_OUT_TABLES = frozenset(
    {"encodings", "pydoc_data", "html/entities.py", "locale.py", "stringprep.py"}
)
BUILD_SETTINGS = ("config-", "_sysconfigdata")

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SourceFile:
    """One module: its path inside the standard library and its text."""

    path: str
    text: str

    @property
    def held_out(self) -> bool:
        """True if it is held out from training; decided by the path, so the same on every run."""
        digest = hashlib.sha256(self.path.encode()).digest()
        return int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT


@dataclass(frozen=True)
class Corpus:
    """Training and held-out files, in a fixed order."""

    train: tuple[SourceFile, ...]
    held_out: tuple[SourceFile, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over paths and texts: two runs with one digest saw the same text."""
        hasher = hashlib.sha256()
        for file in (*self.train, *self.held_out):
            hasher.update(f"{file.path}\0{file.text}\0".encode())
        return hasher.hexdigest()

    def openings(self, n_files: int, n_characters: int) -> Corpus:
        """A small part of the corpus, for a run that only tests the path."""

        def cut(files: tuple[SourceFile, ...], count: int) -> tuple[SourceFile, ...]:
            return tuple(replace(file, text=file.text[:n_characters]) for file in files[:count])

        return Corpus(cut(self.train, n_files), cut(self.held_out, 2))


def is_wanted(path: Path) -> bool:
    """True if a path, relative to the standard library, is source worth learning."""
    return (
        NOT_THE_LIBRARY.isdisjoint(path.parts)
        and LEFT_OUT_TABLES.isdisjoint((path.as_posix(), path.parts[0]))
        and not path.parts[0].startswith(BUILD_SETTINGS)
    )


def read_source(root: Path, path: Path) -> SourceFile | None:
    """Read one module; None where it is empty or not text in the encoding it declares."""
    try:
        with tokenize.open(root / path) as stream:
            text = stream.read()
    except (SyntaxError, UnicodeDecodeError):
        return None
    return SourceFile(path.as_posix(), text) if text.strip() else None


def read_corpus(seed: int) -> Corpus:
    """Read the standard library, in an order that the seed decides."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path.relative_to(root) for path in root.rglob("*.py"))
    read = (read_source(root, path) for path in paths if is_wanted(path))
    files = [file for file in read if file is not None]
    # Neighbours in the stream share a window now and then: a shuffle keeps that free of order.
    np.random.default_rng(seed).shuffle(files)
    train = tuple(file for file in files if not file.held_out)
    held_out = tuple(file for file in files if file.held_out)
    return Corpus(train, held_out)


def functions(files: tuple[SourceFile, ...], seed: int) -> tuple[SourceFile, ...]:
    """Each function of `files` as a text of its own, moved to the left margin, in random order.

    Inside a module a function begins anywhere and ends in the next one. Here it begins a text, as a
    prompt does, and the end of the text follows its last line.
    """
    found = [
        SourceFile(f"{file.path}:{node.lineno}", textwrap.dedent(_lines(file.text, node)))
        for file in files
        for node in ast.walk(_parsed(file))
        if isinstance(node, ast.FunctionDef) and not node.decorator_list
    ]
    np.random.default_rng(seed).shuffle(found)
    return tuple(found)


def _parsed(file: SourceFile) -> ast.Module:
    """The module's syntax tree; an empty one where it does not parse (a cut text)."""
    try:
        return ast.parse(file.text)
    except SyntaxError:
        return ast.Module([], [])


def _lines(text: str, node: ast.FunctionDef) -> str:
    return "".join(text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno])


def train_tokenizer(files: tuple[SourceFile, ...]) -> Tokenizer:
    """Train a byte-level BPE vocabulary that llama.cpp knows as `gpt2`, split as `gpt-2`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((file.text for file in files), trainer)
    return tokenizer


def token_stream(tokenizer: Tokenizer, files: tuple[SourceFile, ...]) -> Ids:
    """Join the files' ids, each preceded by the end-of-text id, which also opens a text."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    encodings = tokenizer.encode_batch([file.text for file in files], add_special_tokens=False)
    return np.array([i for encoding in encodings for i in (end, *encoding.ids)], dtype=np.int64)
