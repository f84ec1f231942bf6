"""Groups of subcommands that are listed from a table, and imported when they are called."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import click

COMMANDS: Final = "qlm.cli.commands"


class LazyGroup(click.Group):
    """Group whose listed subcommands have a name and the first line of their help; loading one imports it."""

    def __init__(
        self, name: str | None = None, *, listed: Mapping[str, Mapping[str, str]], **kwargs: Any
    ) -> None:
        """List the subcommands.

        Args:
            name: As of `click.Group`, with `kwargs`.
            listed: First line of help of each subcommand, by its module below `qlm.cli.commands`. The module
                has the subcommand `name` as `name_command`.
        """
        placeholders = [
            click.Command(name, help=text) for each in listed.values() for name, text in each.items()
        ]
        super().__init__(name, placeholders, **kwargs)
        self._modules: Final = {name: module for module, each in listed.items() for name in each}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand to call, and load it."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, None if listed is None else self.load(str(listed.name)), rest

    def load(self, name: str) -> click.Command:
        """Import a subcommand.

        Raises:
            click.ClickException: A package that it needs is not installed.
        """
        try:
            module = import_module(f"{COMMANDS}.{self._modules[name]}")
        except ModuleNotFoundError as error:
            raise missing(name, error) from error
        command: click.Command = getattr(module, f"{name}_command")
        return command


def missing(command: str, error: ModuleNotFoundError) -> Exception:
    """Return the error for users about a package that a command needs; modules of QLM are never missing."""
    if (error.name or "").startswith("qlm"):
        return error
    return click.ClickException(f"{command} needs {error.name}, which is not installed here")
