"""Feeds a prompt in slices, so that progress shows and Ctrl-C is heard between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specx.errors import ContextError
from specx.runtime.backend import LogitsBackend

__all__ = ["PREFILL_SLICE", "prefill"]

PREFILL_SLICE = 256


def prefill(
    model: LogitsBackend,
    tokens: Sequence[int],
    size: int = PREFILL_SLICE,
    report: Callable[[int], None] = lambda fed: None,
) -> None:
    """Feed what `model` lacks of a prompt, all but its last token, `size` tokens at a time.

    Parameters
    ----------
    report
        Called with the number of tokens that the model holds, after each slice.

    Raises
    ------
    ContextError
        If the context cannot hold the prompt; nothing was fed then.
    """
    if len(tokens) > model.n_ctx:
        raise ContextError(
            f"the prompt has {len(tokens)} tokens and the context of {model.name} holds "
            f"{model.n_ctx}; shorten the prompt or raise -c"
        )
    for start in range(model.n_past, len(tokens) - 1, size):
        end = min(start + size, len(tokens) - 1)
        model.forward(tokens[start:end], n_logits=0)
        report(end)
