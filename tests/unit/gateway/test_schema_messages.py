"""Messages of chats: their parts, media, and answers that are sent back."""

import pytest

from qlm.gateway.api.bodies.content_parts import OTHER_KINDS
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.messages import OTHER_MEDIA
from qlm.gateway.api.schema import parse_chat
from support.chat_bodies import CHAT, refusal_of_chat

CACHED = [{"cache_control": {"type": "ephemeral"}}, {"prompt_cache_breakpoint": {"mode": "explicit"}}]
"""Marks of a cache, of Anthropic and of OpenAI."""


@pytest.mark.parametrize("cached", CACHED)
def test_content_may_be_parts_of_text(cached: dict[str, object]) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", **cached}]
    body = parse_chat(CHAT | {"messages": [{"role": "user", "content": parts}]})
    assert (body.messages[0].text, body.needs_render) == ("a\nb", None)


def test_marks_of_a_cache_may_be_at_messages_and_tools() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    message = {"role": "user", "content": "a", **cached}
    assert parse_chat(CHAT | {"messages": [message]}).needs_render is None
    tool = {"type": "function", "function": {"name": "weather"}, **cached}
    assert parse_chat(CHAT | {"tools": [tool]}).needs_render == "tools"


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}


@pytest.mark.parametrize("part", [IMAGE, SOUND, *({**IMAGE, **cached} for cached in CACHED)])
def test_media_need_a_render_tier(part: dict[str, object]) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": [part]}]
    body = parse_chat(CHAT | {"messages": messages})
    assert body.needs_render == "messages[1].content"
    assert [each.type for each in body.messages[1].media] == [part["type"]]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "function", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls[0].id"),
        (7, "messages[0]"),
    ],
)
def test_a_wrong_message_is_refused_with_its_path(message: object, param: str) -> None:
    assert refusal_of_chat(messages=[message]).param == param


@pytest.mark.parametrize("kind", sorted(OTHER_KINDS))
def test_other_kinds_of_parts_are_refused_by_name(kind: str) -> None:
    text = {"type": "text", "text": "a"}
    error = refusal_of_chat(messages=[{"role": "user", "content": [text, {"type": kind, "uuid": "b"}]}])
    assert error.param == "messages[0].content"
    assert error.message.endswith(f"; not {kind}: {OTHER_MEDIA}")


@pytest.mark.parametrize(
    "part",
    [
        {"image_url": {"url": "https://example.com/a"}},
        {**IMAGE, "uuid": "of another tenant"},
        {"type": "image_url", "image_url": "https://example.com/a"},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "../x"}},
        {"type": "image_url", "image_url": {"url": ""}},
    ],
)
def test_a_wrong_part_is_refused(part: dict[str, object]) -> None:
    error = refusal_of_chat(messages=[{"role": "user", "content": [part]}])
    assert (error.param, '{"type": "image_url", "image_url": {"url": "..."}}' in error.message) == (
        "messages[0].content",
        True,
    )


def test_an_unknown_field_of_a_part_is_named() -> None:
    text = {"type": "text", "text": "a"}
    error = refusal_of_chat(messages=[{"role": "user", "content": [text, IMAGE | {"uuid": "b"}]}])
    assert error.param == "messages[0].content"
    assert error.message.endswith("; not content[1].uuid: it is not supported")
    long = refusal_of_chat(messages=[{"role": "user", "content": [text | {"x" * 5000: 1}]}])
    assert len(long.message) < 800


def test_an_answer_may_be_sent_back_with_its_nulls() -> None:
    answer = {"role": "assistant", "content": "Hello", "refusal": None, "tool_calls": None, "audio": None}
    assert len(parse_chat(CHAT | {"messages": [*CHAT["messages"], answer]}).messages) == 2


def test_the_text_of_a_message_with_tool_calls_may_be_left_out() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    sent = {"role": "assistant", "tool_calls": [call], "annotations": [], "refusal": None}
    body = parse_chat({"model": "m", "messages": [sent]})
    assert body.messages[0].content is None
    assert parse_chat({"model": "m", "messages": [sent | {"content": []}]}).messages[0].content is None
    assert refusal_of_chat(messages=[{"role": "assistant"}]).param == "messages[0].content"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"content": None}, ""),
        ({"content": []}, ""),
        ({"content": None, "refusal": None, "reasoning": "Hm"}, ""),
        ({"content": None, "reasoning_content": "Hm"}, ""),
        ({"reasoning": "Hm"}, ""),
        ({"content": None, "refusal": "No."}, "No."),
        ({"content": [], "refusal": "No."}, "No."),
    ],
)
def test_an_answer_without_text_may_be_sent_back(fields: dict[str, object], text: str) -> None:
    sent = {"role": "assistant", **fields}
    assert parse_chat(CHAT | {"messages": [*CHAT["messages"], sent]}).messages[1].content == text
    with pytest.raises(ApiError, match="content"):
        parse_chat(CHAT | {"messages": [sent | {"role": "user"}]})


@pytest.mark.parametrize("content", [[], None])
def test_the_result_of_a_tool_may_be_empty(content: object) -> None:
    """As LangChain sends the result of a tool that found nothing."""
    result = {"role": "tool", "tool_call_id": "c", "content": content}
    assert parse_chat(CHAT | {"messages": [*CHAT["messages"], result]}).messages[1].content == ""
    without = {"role": "tool", "tool_call_id": "c"}
    assert refusal_of_chat(messages=[without]).param == "messages[0].content"
    of_user = {"role": "user", "content": content}
    assert refusal_of_chat(messages=[of_user]).param == "messages[0].content"


def test_a_refusal_may_be_sent_back_as_a_part_of_an_answer() -> None:
    parts = [{"type": "text", "text": "Well."}, {"type": "refusal", "refusal": "No."}]
    sent = {"role": "assistant", "content": parts}
    assert parse_chat(CHAT | {"messages": [*CHAT["messages"], sent]}).messages[1].text == "Well.\nNo."
    assert refusal_of_chat(messages=[sent | {"role": "user"}]).param == "messages[0].content"
    wrong = {"role": "assistant", "content": [{"type": "refusal", "refusal": 7}]}
    assert refusal_of_chat(messages=[wrong]).param == "messages[0].content"


def test_reasoning_may_be_sent_back_under_its_former_name() -> None:
    def reasoning(**fields: str) -> str | None:
        sent = {"role": "assistant", "content": "Hello", **fields}
        return parse_chat({"model": "m", "messages": [sent]}).messages[0].reasoning

    assert reasoning(reasoning_content="Hm.") == "Hm."
    assert reasoning(reasoning_content="Hm.", reasoning="So.") == "So."
