"""The command `qlm`: subcommands are listed without being imported, and loaded when called."""

import inspect
import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from qlm.cli.main import load_command, main

HEAVY = ("aiohttp", "grpc", "numba", "numpy", "pika", "pydantic", "redis", "rich", "starlette", "yaml")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_version_and_help_import_no_package_that_only_commands_need(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom qlm.cli.main import main\n"
        f"main({arguments}, standalone_mode=False)\n"
        f"print(*sorted({set(HEAVY)} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "\n"


@pytest.mark.parametrize("name", main.commands)
def test_the_listed_help_of_a_command_opens_its_own(name: str) -> None:
    command = load_command(name)
    assert command.name == name
    assert main.commands[name].help == inspect.cleandoc(command.help or "").split("\n")[0]


def test_completion_knows_commands_and_their_options() -> None:
    complete = ShellComplete(main, {}, "qlm", "_QLM_COMPLETE")
    assert {"serve", "simulate"} <= {each.value for each in complete.get_completions([], "s")}
    assert "--policy" in {each.value for each in complete.get_completions(["simulate"], "--p")}


def test_a_command_whose_packages_are_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("qlm.cli.commands.profile", "qlm.cli.profiling.identify"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    done = CliRunner().invoke(main, ["profile", "--help"])
    assert (done.exit_code, done.output) == (1, "Error: profile needs aiohttp, which is not installed here\n")


def test_an_unknown_command_is_refused_with_a_suggestion() -> None:
    done = CliRunner().invoke(main, ["simulat"])
    assert done.exit_code == click.UsageError.exit_code
    assert "simulate" in done.output
