"""The command `qlm`: subcommands are listed without being imported, and loaded when called."""

import inspect
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from qlm.cli.lazy import LazyGroup
from qlm.cli.main import main

SERVING = (
    "aiohttp",
    "grpc",
    "highspy",
    "numba",
    "numpy",
    "pika",
    "pydantic",
    "pyomo",
    "redis",
    "starlette",
    "tokenizers",
    "uvicorn",
    "yaml",
)
"""Packages that only serving, planning and simulating need; they take long to import."""

VERSION_AND_HELP = [["--version"], ["--help"]]
HELP_OF_LONG_COMMANDS = [
    [*words.split(), "--help"]
    for words in (
        *("serve", "gateway", "controller", "agent", "agents", "adopt", "init"),
        *("simulate", "compare", "bench", "bench run", "bench score", "profile", "roofline"),
        *("evaluate", "evaluate streaming", "evaluate fidelity", "evaluate rct"),
        *("plan", "plan show", "plan explain"),
    )
]
"""Of those that import most when they run. `qlm emulate` has a parser of its own."""

LOOKS = [
    *([name, "--url", "http://127.0.0.1:1"] for name in ("queues", "groups", "instances", "requests")),
    ["requests", "retry", "x", "--url", "http://127.0.0.1:1"],
    ["doctor", "--url", "http://127.0.0.1:1"],
    ["cancel", "x", "--url", "http://127.0.0.1:1"],
    ["drain", "x", "--url", "http://127.0.0.1:1"],
    *([name, "--help"] for name in ("history", "batches", "keys")),
]


@pytest.mark.parametrize(
    ("calls", "unwanted"),
    [
        (VERSION_AND_HELP, (*SERVING, "rich")),
        (HELP_OF_LONG_COMMANDS, (*SERVING, "rich")),
        (LOOKS, SERVING),
    ],
    ids=["help", "help of long commands", "looks"],
)
def test_a_command_imports_no_package_that_only_others_need(
    calls: list[list[str]], unwanted: tuple[str, ...]
) -> None:
    code = (
        "import sys\nfrom qlm.cli.main import main\n"
        f"for call in {calls}:\n"
        "    try:\n        main(call, standalone_mode=False)\n"
        "    except SystemExit:\n        pass\n"
        f"print(*sorted({set(unwanted)} & sys.modules.keys()), file=sys.stdout)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


def subcommands(group: LazyGroup) -> list[tuple[LazyGroup, str]]:
    """Return all subcommands of a group with the groups that list them."""
    found = [(group, name) for name in group.commands]
    below = [group.load(name) for name in group.commands]
    return found + [pair for each in below if isinstance(each, LazyGroup) for pair in subcommands(each)]


def test_the_listed_help_of_a_command_opens_its_own() -> None:
    found = subcommands(main)
    assert {"serve", "show", "rct"} <= {name for _, name in found}
    for group, name in found:
        command = group.load(name)
        assert command.name == name
        assert group.commands[name].help == inspect.cleandoc(command.help or "").split("\n")[0]


def test_each_long_help_is_among_those_that_import_nothing() -> None:
    tested = {tuple(call[:-1]) for call in HELP_OF_LONG_COMMANDS}
    short = {name for (name, *_) in LOOKS} | {"emulate"}
    assert {name for name in main.commands if (name,) not in tested} <= short
    for group in ("plan", "evaluate", "bench"):
        below = main.load(group)
        assert isinstance(below, click.Group)
        assert {(group, name) for name in below.commands} <= tested


def test_completion_knows_commands_and_their_options() -> None:
    complete = ShellComplete(main, {}, "qlm", "_QLM_COMPLETE")
    assert {"serve", "simulate"} <= {each.value for each in complete.get_completions([], "s")}
    assert "--policy" in {each.value for each in complete.get_completions(["simulate"], "--p")}
    assert "show" in {each.value for each in complete.get_completions(["plan"], "s")}
    assert "--samples" in {each.value for each in complete.get_completions(["plan", "show"], "--s")}


@pytest.mark.parametrize(
    ("words", "command", "modules"),
    [
        ("profile http://127.0.0.1:1 --accelerator A10", "profile", "qlm.cli.commands.profile.running"),
        ("bench http://127.0.0.1:1", "bench", "qlm.cli.commands.bench.running"),
    ],
)
def test_a_command_whose_packages_are_missing_is_one_line(
    words: str, command: str, modules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    importers = ("qlm.cli.profiling.identify", "qlm.cli.bench.client", "qlm.cli.commands.bench.measuring")
    for module in (modules, *importers):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert CliRunner().invoke(main, [command, "--help"]).exit_code == 0
    done = CliRunner().invoke(main, words.split())
    expected = f"Error: {command} needs aiohttp, which is not installed here\n"
    assert (done.exit_code, done.output) == (1, expected)


PROBLEM = Path(__file__).resolve().parents[3] / "examples/problems/six-groups.json"


@pytest.mark.parametrize(
    "words", ["--help", "--version", f"plan --problem {PROBLEM}", f"plan explain code-1 --problem {PROBLEM}"]
)
def test_output_that_cannot_be_written_is_one_line(words: str) -> None:
    call = [sys.executable, "-m", "qlm.cli.main", *words.split()]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "qlm: No space left on device\n")


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (TimeoutError(), TimeoutError),
        (ConnectionResetError(), ConnectionResetError),
        (BrokenPipeError(), SystemExit),
        (OSError(28, "No space left on device"), SystemExit),
    ],
)
def test_an_error_of_a_connection_is_not_taken_for_one_of_the_output(
    error: OSError, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(LazyGroup, "invoke", fail)
    with pytest.raises(raised):
        main(["queues"])


def test_an_unknown_command_is_refused_with_a_suggestion() -> None:
    done = CliRunner().invoke(main, ["simulat"])
    assert done.exit_code == click.UsageError.exit_code
    assert "simulate" in done.output
