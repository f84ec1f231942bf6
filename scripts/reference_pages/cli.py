"""docs/reference/cli.md, from the commands themselves."""

import argparse
import inspect
from collections.abc import Iterator, Mapping
from typing import Final

import click

from qlm.cli.commands.control import drop_command, retry_command
from qlm.cli.lazy import LazyGroup
from qlm.cli.main import main
from qlm.simulator.emulation.options import option_parser
from scripts.reference_pages.fields import NoMeaningError
from scripts.reference_pages.limits import Limits
from scripts.reference_pages.markdown import number, page, table

_INTRODUCTION: Final = """\
Every command of `qlm`; each says the same with `--help`. Exit codes: 0, it worked (`qlm doctor`: all is \
well); 1, it failed, with one line on standard error; 2, what was asked makes no sense (an option, a \
configuration, a file)."""

_TABLES: Final = """\
Tables fit the terminal, or `COLUMNS` where it is set; columns without room are named below the table. In a \
pipe without `COLUMNS` they are tab-separated, below a line with `#` and their title."""

_COMPLETION: Final = """\
`eval "$(_QLM_COMPLETE=bash_source qlm)"` in `~/.bashrc` completes commands, options and their values with \
the tab key. For zsh it is `zsh_source` in `~/.zshrc`; for fish, `_QLM_COMPLETE=fish_source qlm | source` in \
`~/.config/fish/completions/qlm.fish`."""

_HEAD: Final = ("option", "value", "default", "meaning")

_HIDDEN: Final[Mapping[str, tuple[click.Command, ...]]] = {"requests": (retry_command, drop_command)}
"""Commands below others that no group knows of."""


def cli_page() -> str:
    """Return the page."""
    return page("Command line reference", _INTRODUCTION, _TABLES, _COMPLETION, *_parts(main, "qlm"))


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and all below it, with the words that call them."""
    yield name, command
    below = dict(command.commands) if isinstance(command, click.Group) else {}
    if isinstance(command, LazyGroup):
        below = {word: command.load(word) for word in below}
    below |= {each.name or "": each for each in _HIDDEN.get(command.name or "", ())}
    for word, each in below.items():
        yield from commands(each, f"{name} {word}")


def _parts(root: click.Command, name: str) -> Iterator[str]:
    for words, command in commands(root, name):
        if command is root:
            continue
        yield f"## `{words}`"
        yield inspect.cleandoc(command.help or "")
        with click.Context(command, info_name=words) as context:
            if command.name == "emulate":
                yield _usage(words, ["[OPTIONS]"])
                yield table(_HEAD, _emulate_rows())
                continue
            yield _usage(words, command.collect_usage_pieces(context))
            if found := list(_rows(command)):
                yield table(_HEAD, found)


def _usage(words: str, pieces: list[str]) -> str:
    return f"```\n{words} {' '.join(pieces)}\n```"


def _rows(command: click.Command) -> Iterator[tuple[str, ...]]:
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        if not option.help:
            raise NoMeaningError(f"{option.opts[0]} of qlm {command.name} has no help")
        names = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
        meaning, _, said = option.help.partition("  [default: ")
        given = f"{said.removesuffix(']')}" if said else _default(option)
        more = "; may be repeated" if option.multiple and "repeated" not in meaning else ""
        yield names, _value(option) + more, given, meaning


def _value(option: click.Option) -> str:
    """Say what an option takes."""
    kind = option.type
    if option.is_flag:
        return ""
    if isinstance(kind, click.Choice):
        return " or ".join(f"`{each}`" for each in kind.choices)
    if isinstance(kind, click.IntRange | click.FloatRange):
        low, high = ("gt" if kind.min_open else "ge"), ("lt" if kind.max_open else "le")
        words = "whole number" if isinstance(kind, click.IntRange) else "number"
        bounds = {name: value for name, value in ((low, kind.min), (high, kind.max)) if value is not None}
        return ", ".join([words, *Limits(bounds).of_number()])
    if isinstance(kind, click.Path):
        return "path"
    return {"integer": "whole number", "float": "number"}.get(kind.name, kind.name)


def _default(option: click.Option) -> str:
    if option.required:
        return "required"
    value = option.to_info_dict()["default"]
    if value is None or value == () or (option.is_flag and not option.secondary_opts):
        return ""
    if option.is_flag:
        return f"`{(option.opts if value else option.secondary_opts)[0]}`"
    if isinstance(value, tuple | list):
        return ", ".join(f"`{each}`" for each in value)
    return f"`{value}`"


def _emulate_rows() -> Iterator[tuple[str, ...]]:
    """Describe the options of the one command that reads its own command line, as vLLM's does."""
    for action in option_parser()._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        words = {int: "whole number", float: "number", None: "text"}
        kind = "" if action.nargs == 0 else words.get(action.type, "path")  # type: ignore[arg-type]
        yield (
            ", ".join(f"`{each}`" for each in action.option_strings),
            kind,
            _emulate_default(action),
            action.help or "",
        )


def _emulate_default(action: argparse.Action) -> str:
    if action.default is None:
        return ""
    if isinstance(action.default, bool):
        return f"`{action.option_strings[0 if action.default else 1]}`"
    return f"`{number(action.default) if isinstance(action.default, float) else action.default}`"
