"""Emulated models call the tool that a user asks for, where they may choose."""

from typing import Any

import pytest

from qlm.simulator.emulation.render_parsing import Message, constraint_of, message_of

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("weather", "fs.read")]
CALL = '[{"name": "fs.read", "parameters": {"a": 1}}]'


def asked(*messages: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"tools": TOOLS, "messages": [{"role": role, "content": text} for role, text in messages], **more}


@pytest.mark.parametrize(
    ("messages", "tool"),
    [
        ([("user", "Please call the tool fs.read.")], "fs.read"),
        ([("user", "Call the tool `weather`, please"), ("system", "Be brief.")], "weather"),
        ([("user", "call the tool other")], None),
        ([("user", "call the tool weather"), ("assistant", ""), ("tool", "rain")], None),
        ([("user", "call the tool weather"), ("assistant", "no"), ("user", "why?")], None),
        ([("user", "What is a tool?")], None),
    ],
)
def test_the_tool_that_the_last_turn_names_is_called(
    messages: list[tuple[str, str]], tool: str | None
) -> None:
    constraint = constraint_of(asked(*messages))
    named = None if constraint is None else constraint["json"]["items"]["properties"]["name"]["const"]
    assert named == tool


def test_none_is_called_where_the_request_forbids_it() -> None:
    assert constraint_of(asked(("user", "call the tool weather"), tool_choice="none")) is None


def test_a_call_is_read_from_any_of_its_beginnings_on() -> None:
    request = asked(("user", ""))
    assert message_of(CALL.encode(), request, ended=True) == Message("", "fs.read", '{"a": 1}')
    for end in range(len(CALL)):
        before = message_of(CALL[:end].encode(), request, ended=False)
        assert before.content == ""
        assert '{"a": 1}'.startswith(before.arguments)


def test_words_are_no_call() -> None:
    request = asked(("user", ""))
    assert message_of(b"[1] is a list", request, ended=False) == Message("[1] is a list")
    assert message_of(b"[{", request, ended=True) == Message("[{")
    for text in (
        '[{"name": "Bob", "age": 3}]',
        '[{"name": "other", "parameters": {}}]',
        '[{"name": "weather"}]',
    ):
        assert message_of(text.encode(), request, ended=True) == Message(text)
        assert message_of(text.encode(), request, ended=False) == Message(text)
    assert message_of(CALL.encode(), {**request, "tool_choice": "none"}, ended=True) == Message(CALL)
