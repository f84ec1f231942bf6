"""Command lines and configurations in the pages and examples are ones that the programs accept."""

import re
import shlex
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path

import click
import pytest
import yaml

from qlm.cli.commands.control import drop_command, retry_command
from qlm.cli.config.default import emulated_config
from qlm.cli.config.listeners.access import connection_limits
from qlm.cli.config.settings import parse_config
from qlm.cli.main import main
from qlm.simulator.emulation.options import parse_options

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples/single-machine"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
ENDS = ("|", "||", "&", "&&", ";", ">", "then", "do", "done")
BEFORE = ("$", "exec", "until", "if", "sudo")


def lines_of(page: Path) -> Iterator[str]:
    """Yield the lines of a page's shell blocks, those that go on with \\ in one piece."""
    for language, text in BLOCK.findall(page.read_text("utf-8")):
        if language in ("sh", "console"):
            yield from text.replace("\\\n", " ").splitlines()


def calls_of(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of qlm in a line."""
    shell = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    shell.whitespace_split = True
    simple: list[str] = []
    for word in [*shell, ";"]:
        if word not in ENDS:
            simple.append(word)
            continue
        call = list(dropwhile(lambda each: each in BEFORE or "=" in each, simple))
        if call and call[0].split("/")[-1] == "qlm":
            yield call[1:]
        simple = []


def accept(arguments: list[str]) -> None:
    """Read a command line as `qlm` would, without running it.

    Raises:
        click.UsageError: It is not a command, or has no such option or value.
    """
    if arguments[:1] == ["emulate"]:
        parse_options(arguments[1:])
    elif arguments[:2] in (["requests", "retry"], ["requests", "drop"]):
        command = retry_command if arguments[1] == "retry" else drop_command
        command.make_context(arguments[1], arguments[2:])
    else:
        _accept(main, arguments)


def _accept(command: click.Command, arguments: list[str]) -> None:
    if isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        _, called, rest = command.resolve_command(click.Context(command), arguments)
        assert called is not None
        _accept(called, rest)
    else:
        command.make_context(command.name, list(arguments))


CALLS = [
    pytest.param(arguments, id=f"{page.name}: qlm {' '.join(arguments)}")
    for page in PAGES
    for line in lines_of(page)
    if "qlm" in line
    for arguments in calls_of(line)
]


def test_there_are_calls() -> None:
    assert len(CALLS) > 30


@pytest.mark.parametrize("arguments", CALLS)
def test_calls_in_the_pages_are_accepted(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # as the pages have it: paths of examples are relative to it
    accept(arguments)


@pytest.mark.parametrize(
    "words",
    [
        "queues --wach",
        "requests retry --drop-all",
        "requests drop --drop",
        "instance",
        "plan explain g --scale-up",
    ],
)
def test_a_wrong_call_is_noticed(words: str) -> None:
    with pytest.raises(click.UsageError):
        accept(words.split())


@pytest.mark.parametrize("unit", sorted(EXAMPLES.glob("*.service")), ids=lambda unit: unit.name)
def test_units_run_commands_that_exist(unit: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text("utf-8"), re.MULTILINE)
    (arguments,) = calls_of(line.replace("%i", "gpu-0"))
    accept(arguments)
    assert arguments[-2:] == ["--config", "/etc/qlm/qlm.yaml"]


def test_the_unit_for_one_process_starts_without_the_addresses_of_servers() -> None:
    page = (ROOT / "docs/deploy-single-machine.md").read_text("utf-8")
    (name,) = re.findall(r"make it a service: `(\S+)` with `qlm serve` in its `ExecStart`", page)
    unit = (EXAMPLES / name).read_text("utf-8")
    # With a minus: systemd refuses to start a unit of which a file without one is missing.
    assert re.findall(r"^EnvironmentFile=(.*)$", unit, re.MULTILINE) == ["-/etc/qlm/servers.env"]
    assert "KillMode=mixed" in unit, "engines end after QLM has ended them"


def test_the_example_of_one_machine_is_a_configuration() -> None:
    raw = yaml.safe_load((EXAMPLES / "qlm.yaml").read_text("utf-8"))
    servers = {"broker": "amqp://qlm:p@127.0.0.1:5672/%2F", "store": "redis://:p@127.0.0.1:6379/0"}
    config = parse_config(raw | servers, "qlm.yaml")
    units = re.findall(r"qlm-agent@(\S+)", (ROOT / "docs/deploy-single-machine.md").read_text("utf-8"))
    assert {each.id for each in config.instances} <= set(units)


@pytest.mark.parametrize("unit", sorted(EXAMPLES.glob("*.service")), ids=lambda unit: unit.name)
def test_units_allow_the_descriptors_that_connections_need_and_start_what_failed(unit: Path) -> None:
    settings = dict(re.findall(r"^(\w+)=(.*)$", unit.read_text("utf-8"), re.MULTILINE))
    allowed = int(settings["LimitNOFILE"])
    _, warning = connection_limits(emulated_config({}), lambda wanted: min(wanted, allowed))
    assert warning is None
    assert settings["Restart"] in ("on-failure", "always")


@pytest.mark.parametrize("page", ["configuration.md", "bring-a-model.md", "choosing-slos.md"])
def test_configurations_in_the_pages_are_accepted(page: str) -> None:
    found = 0
    for language, text in BLOCK.findall((ROOT / "docs" / page).read_text("utf-8")):
        if language == "yaml":
            raw = yaml.safe_load(text)
            served = {
                "models": [{"id": "m"}],
                "instances": [{"id": "i", "accelerator": "A10", "models": ["m"]}],
            }
            parse_config(served | raw, page)
            found += 1
    assert found
