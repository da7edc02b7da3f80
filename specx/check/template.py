"""A chat template, rendered once with a probe text."""

from __future__ import annotations

import warnings

from specx.check.records import TemplateRecord
from specx.errors import ModelError
from specx.runtime.inspection import SpecialTokens
from specx.session.chat.template import ChatOptions, Template

__all__ = ["probe_template"]

SYSTEM = {"role": "system", "content": "Answer in one word."}
USER = {"role": "user", "content": "Which river flows through Vienna?"}


def probe_template(tokens: SpecialTokens) -> TemplateRecord | None:
    """Render the model's own template; None if it has none."""
    if not (tokens.chat_template or "").strip():
        return None
    bos, eos = (
        "" if token is None else tokens.token_text(token)
        for token in (tokens.bos_id, tokens.eos_id)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the record tells them
        try:
            template = Template(tokens.chat_template or "", ChatOptions(), bos=bos, eos=eos)
            alone = template.chat([USER])
        except ModelError as error:
            return TemplateRecord(problem=str(error), system="refused", altered=False)
        altered = alone.contents is None
        try:
            both = template.chat([SYSTEM, USER])
        except ModelError:
            return TemplateRecord(problem=None, system="refused", altered=altered)
    return TemplateRecord(
        problem=None,
        system="merged" if both.merged else "taken",
        altered=altered or both.contents is None,
    )
