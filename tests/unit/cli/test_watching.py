"""Tables that are watched: the keys of a terminal, and output that is none."""

import os
import pty
from collections.abc import Iterator, Sequence

import pytest

from qlm.cli.inspect import watching
from qlm.cli.inspect.layout import Table
from qlm.cli.inspect.render import table
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
