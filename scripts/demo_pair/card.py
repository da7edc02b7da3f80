"""The model card: figures as JSON, and the page written from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specx.records.markdown import markdown_table

Card = dict[str, Any]

PAGE = """\
# The demo pair

Two small language models of Python source, trained by `scripts/train_demo_pair.py`, so that specx
has something to run without a download. They complete code in the manner of the standard library;
they know nothing else, and what they write is not to be trusted.

{models}
Held-out text: {held_out_files} of the library's files, {held_out_bytes:,} bytes, never trained on,
chosen by a hash of their paths and read one after the other. Each token is predicted once, from the
{half_context} to {context} tokens before it.

## Agreement

The mean over held-out positions of sum_x min(draft(x), target(x)): the chance that a drafted token
is accepted.

{agreement}{runtime}
## How they learnt

Text: {train_files} modules of the standard library of Python {python}: {train_tokens:,} tokens of
{bytes_per_token:.2f} bytes. Left out: tests, third parties, and what is tables rather than code:
{left_out}.

The verifier learns to predict the modules, then the modules and their functions as texts of their
own, which is what a prompt looks like. The drafter learns the verifier's whole distribution at each
position of the latter (Kullback-Leibler divergence, and the chance of a rejection at temperature
0.7).

- seed {seed}
- {versions}
- corpus, SHA-256: `{corpus_digest}`

The minutes in the table are the clock's, the machine's other work and pauses included.

### Held-out loss while training

Nats a token, over windows of {curve_context} tokens side by side (less context than in the table
above, so a little worse). For the drafter, the training loss is the divergence from the verifier.

{curves}
## Licence

The text is the Python standard library, under the Python Software Foundation License version 2
(PSF-2.0), copyright Python Software Foundation; the weights are given under the same licence.
"""

MODEL_ROWS = (
    ("file", "file", "`{}`"),
    ("size, MB", "megabytes", "{:.2f}"),
    ("parameters", "parameters", "{:,}"),
    ("layers x width", "shape", "{}"),
    ("tokens seen", "tokens_seen", "{:,}"),
    ("training, minutes", "minutes", "{:.0f}"),
    ("held-out, nats a token", "nats_per_token", "{:.4f}"),
    ("held-out, bits a byte", "bits_per_byte", "{:.4f}"),
)


def write_card(folder: Path, card: Card) -> None:
    """Write `card.json` and the page that follows from it."""
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(render(card), encoding="utf-8")


def render(card: Card) -> str:
    """The page for a card."""
    models = card["models"]
    return PAGE.format(
        **card["corpus"],
        seed=card["seed"],
        models=markdown_table(
            [["", "verifier", "drafter"], *(model_row(row, models) for row in MODEL_ROWS)]
        ),
        agreement=markdown_table(
            [["temperature", "agreement"], *([t, f"{a:.4f}"] for t, a in card["agreement"].items())]
        ),
        versions=", ".join(f"{name} {version}" for name, version in card["versions"].items()),
        curves="\n".join(curve_table(name, model["curve"]) for name, model in models.items()),
        runtime=runtime_section(card.get("runtime", {})),
    )


def model_row(row: tuple[str, str, str], models: Card) -> list[str]:
    """One line of the table of models."""
    title, key, form = row
    return [title, *(form.format(models[name][key]) for name in ("verifier", "drafter"))]


def curve_table(name: str, curve: list[dict[str, float]]) -> str:
    """A learning curve as a table."""
    rows = [[f"{name}: tokens seen", "held-out", "training loss"]]
    for point in curve:
        figures = f"{point['held_out_nats']:.4f}", f"{point['train_loss']:.4f}"
        rows.append([f"{point['tokens']:,}", *figures])
    return markdown_table(rows)


def runtime_section(runtime: Card) -> str:
    """The behaviour of the files on the runtimes, if it has been checked."""
    if not runtime:
        return ""
    lines = "\n".join(f"- {title}: {value}" for title, value in runtime.items())
    return f"\n## On the runtimes\n\n{lines}\n"
