"""Settings of a chat: from the command line's options, changed by ``/set``, saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from specx import Settings
from specx.cli.drafting import DraftOptions
from specx.cli.generating import settings_of
from specx.cli.options import pick
from specx.core.streams import draw_seed
from specx.errors import UsageError
from specx.records.chat import ChatSettings, SavedChat

__all__ = ["ChosenSettings"]

SHORT = {"seed": "seed"}
"""Names shown instead of the first of an option."""


class ChosenSettings:
    """The settings that the next answer will have.

    Parameters
    ----------
    context
        Of the command: its options convert and check the values.
    given
        The values of all options.
    """

    def __init__(self, context: click.Context, given: Mapping[str, Any]) -> None:
        self._context, self._given = context, dict(given)
        names = [*ChatSettings.__dataclass_fields__, "seed"]
        self._options = {p.name: p for p in context.command.params if p.name in names}
        self.seed: int = draw_seed() if given["seed"] is None else given["seed"]
        """The seed of the first answer; the nth uses seed + n - 1."""

    @property
    def drafting(self) -> DraftOptions:
        """The options of drafting."""
        return _drafting(self._given)

    @property
    def live(self) -> bool:
        """True if auto may learn costs from the clock: a seed is given to reproduce a text."""
        return self._given["seed"] is None

    @property
    def predict(self) -> int | None:
        """Maximum number of tokens per answer, if there is one."""
        limit: int | None = self._given["predict"]
        return limit

    def of(self, n_asked: int) -> Settings:
        """The settings of the answer after `n_asked` others."""
        return settings_of(self._given, self.drafting, self.seed + n_asked)

    def change(self, name: str, text: str) -> str:
        """Give the setting `name` the value in `text`, or its default for the word ``default``.

        Returns
        -------
        str
            The parameter's name, such as ``temperature`` for ``temp``.

        Raises
        ------
        UsageError
            If there is no such setting, or the value is invalid; nothing has changed then.
        """
        option = self._named(name)
        context, key = self._context, str(option.name)
        wanted = option.get_default(context) if text == "default" else text
        try:
            value = option.process_value(context, wanted)
            changed = {**self._given, key: value}
            settings_of(changed, _drafting(changed), self.seed)
        except click.BadParameter as error:
            raise UsageError(f"/set {name}: {error.message.rstrip('.')}; /set shows all") from error
        self._given = changed
        if key == "seed":
            self.seed = draw_seed() if value is None else value
        return key

    def _named(self, name: str) -> click.Parameter:
        wanted = name.lstrip("-").replace("_", "-")
        for option in self._options.values():
            if wanted in _names(option):
                return option
        known = ", ".join(map(_name, self._options.values()))
        raise UsageError(f"unknown setting '{name}'; known: {known}")

    def shown(self) -> str:
        """All settings in a line; those of the drafter where they are set."""
        values = {**self._given, "seed": self.seed, "gamma": self.of(0).gamma}
        return "  ".join(
            f"{_name(option)} {'no limit' if values[key] is None else values[key]}"
            for key, option in self._options.items()
            if values[key] is not None or key == "predict"
        )

    def record(self) -> ChatSettings:
        """The settings, to be saved."""
        return pick(ChatSettings, self._given)

    def restore(self, saved: SavedChat, path: Path, *, keep: bool = False) -> None:
        """Take the settings of the chat saved in `path`; `keep` those that the command line names.

        Raises
        ------
        UsageError
            If they cannot be used; nothing has changed then.
        """
        changes = {**asdict(saved.settings), "seed": saved.seed}
        if keep:
            source, line = self._context.get_parameter_source, ParameterSource.COMMANDLINE
            changes = {name: each for name, each in changes.items() if source(name) != line}
        seed = changes.pop("seed", self.seed)
        given = {**self._given, **changes}
        try:
            settings_of(given, _drafting(given), seed)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
        self._given, self.seed = given, seed


def _drafting(given: Mapping[str, Any]) -> DraftOptions:
    return pick(DraftOptions, {**given, "gamma_trace": None, "gamma_replay": None})


def _names(option: click.Parameter) -> list[str]:
    return [name.lstrip("-") for name in option.opts]


def _name(option: click.Parameter) -> str:
    return SHORT.get(str(option.name)) or _names(option)[0]
