"""Tables that are watched: the keys of a terminal, and output that is none."""

import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from qlm.cli.inspect import watching
from qlm.cli.inspect.admin_client import AdminError
from qlm.cli.inspect.layout import Table
from qlm.cli.inspect.render import table
from qlm.cli.inspect.view import View
from qlm.cli.inspect.watching import keys_of


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A terminal: the end on which keys are typed, and that of the program."""
    typed, ours = pty.openpty()
    yield typed, ours
    os.close(typed)
    os.close(ours)


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("  ", [" ", " "]),
        ("\x1b[B\x1b[B", ["\x1b[B", "\x1b[B"]),
        ("\x1b[6~\x1b[5~q", ["\x1b[6~", "\x1b[5~", "q"]),
        ("\x1bOAs", ["\x1bOA", "s"]),
        ("/chat\n", list("/chat\n")),
        ("é" * 40, ["é"] * 40),
        ("\x1b", ["\x1b"]),
    ],
)
def test_keys_that_come_at_once_are_all_taken(terminal: tuple[int, int], typed: str, keys: list[str]) -> None:
    with keys_of(terminal[1]) as pressed:
        os.write(terminal[0], typed.encode())
        assert [pressed.next(60.0) for _ in keys] == keys
        assert pressed.next(0.0) is None


def test_a_character_in_two_parts_is_one_key(terminal: tuple[int, int]) -> None:
    with keys_of(terminal[1]) as pressed:
        os.write(terminal[0], "é".encode()[:1])
        assert pressed.next(60.0) is None
        os.write(terminal[0], "é".encode()[1:])
        assert pressed.next(60.0) == "é"


def test_output_that_is_no_terminal_has_the_tables_of_each_look(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watching, "WATCH_S", 0.0)
    waiting = iter((5, 7))

    def look() -> Sequence[Table]:
        count = next(waiting, None)
        if count is None:
            raise KeyboardInterrupt
        return [table("class queues", ("model", "waiting>"), [("llama", count)])]

    with pytest.raises(KeyboardInterrupt):
        watching.watch(look)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split() for line in shown if line.startswith("llama")] == [["llama", "5"], ["llama", "7"]]


def test_a_gateway_that_is_away_for_a_while_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watching, "WATCH_S", 0.0)
    looks = iter((5, None, None, 7))

    def look() -> Sequence[Table]:
        try:
            count = next(looks)
        except StopIteration:
            raise KeyboardInterrupt from None
        if count is None:
            raise AdminError("no QLM gateway answers")
        return [table("class queues", ("model", "waiting>"), [("llama", count)])]

    with pytest.raises(KeyboardInterrupt):
        watching.watch(look)
    shown = capsys.readouterr()
    assert [line.split()[1] for line in shown.out.splitlines() if line.startswith("llama")] == ["5", "7"]
    assert shown.err == "qlm: no QLM gateway answers\n", "told once"


def test_the_first_look_that_fails_ends_the_watch() -> None:
    def look() -> Sequence[Table]:
        raise AdminError("no QLM gateway answers")

    with pytest.raises(AdminError):
        watching.watch(look)


PROGRAM = """
from qlm.cli.inspect.render import table
from qlm.cli.inspect.watching import watch
watch(lambda: [table("class queues", ("model", "waiting>"), [("llama", 5)])])
"""


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_tables_are_shown_on_any_terminal(terminal: tuple[int, int], term: str) -> None:
    typed, ours = terminal
    env = {**os.environ, "TERM": term}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, stdin=ours, stdout=ours) as program:
        try:
            shown = b""
            while b"llama" not in shown:
                assert select.select([typed], [], [], 60.0)[0], shown
                shown += os.read(typed, 65536)
        finally:
            program.kill()


def test_the_last_row_tells_why_the_tables_are_not_of_now() -> None:
    tables = [table("class queues", ("model", "waiting>"), [("llama", 5)])]
    _, lines = View().drawn(tables, 40, 8, "no QLM gateway answers at http://127.0.0.1:9")
    assert len(lines) == 8 and any("llama" in line for line in lines)
    assert lines[-1] == "no QLM gateway answers at http://127.0.0"
