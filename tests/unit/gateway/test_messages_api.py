"""Anthropic's Messages API: blocks as messages of a chat, and its events."""

import json
from dataclasses import replace
from typing import Any

import pytest

from qlm.domain.outcome import Outcome
from qlm.gateway.api.errors import ApiError, from_outcome
from qlm.gateway.api.messages import OTHER_MEDIA
from qlm.gateway.api.messages_api.blocks import chat_messages
from qlm.gateway.api.messages_api.body import parse_messages
from qlm.gateway.api.messages_api.chat import as_chat
from qlm.gateway.api.messages_api.events import MessageEvents
from qlm.gateway.api.messages_api.objects import error_object, message_object
from qlm.gateway.api.schema import parse_chat
from qlm.gateway.core.session_events import SendFinal
from support.requests import a_request

METADATA = a_request().metadata()
ENDED = SendFinal(6, "", "stop", Outcome.STOP, cached_tokens=3)
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def events(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(each.split(b"\ndata: ")[1]) for each in data.split(b"\n\n") if each]


def streamed(*, thinking: bool) -> list[dict[str, Any]]:
    shape = MessageEvents(METADATA, "flex", thinking=thinking)
    data = shape.opening() + shape.delta(1, {"role": "assistant", "reasoning": "Hm"})
    data += shape.delta(2, {"reasoning": "m."}) + shape.delta(3, {"content": "Yes"})
    data += shape.delta(4, {"tool_calls": [{"index": 0, **CALL, "function": {"name": "f"}}]})
    data += shape.delta(5, {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]})
    return events(data + shape.derendered_end(ENDED, {}, "tool_calls"))


def test_blocks_come_one_after_the_other() -> None:
    made = streamed(thinking=True)
    started = [each for each in made if each["type"] == "content_block_start"]
    assert [each["content_block"]["type"] for each in started] == ["thinking", "text", "tool_use"]
    opened: list[int] = []
    for each in made[1:-2]:
        if each["type"] == "content_block_start":
            opened.append(each["index"])
        assert [each["index"]] == opened, "one block is open at a time"
        if each["type"] == "content_block_stop":
            opened.pop()
    assert made[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    usage = made[-2]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (1, 3, 6)


@pytest.mark.parametrize("content", [[], None])
def test_an_answer_without_blocks_may_be_sent_back(content: Any) -> None:
    question = {"role": "user", "content": "Hi"}
    said = chat_messages([question, {"role": "assistant", "content": content}, question])
    assert said == [question, {"role": "assistant", "content": ""}, question]
    with pytest.raises(ApiError, match="expected a text or a list of blocks"):
        chat_messages([{"role": "user", "content": content}])


def test_reasoning_that_another_server_encrypted_is_left_out() -> None:
    question = {"role": "user", "content": "Hi"}
    redacted = {"type": "redacted_thinking", "data": "aGlkZGVu"}
    for blocks, text in (([redacted, {"type": "text", "text": "Yes."}], "Yes."), ([redacted], "")):
        said = chat_messages([question, {"role": "assistant", "content": blocks}, question])
        assert said == [question, {"role": "assistant", "content": text}, question]


def test_many_stop_sequences_are_accepted() -> None:
    plain = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    plain["stop_sequences"] = [f"</{n}>" for n in range(64)]
    assert parse_chat(as_chat(parse_messages(plain), plain)).stop == plain["stop_sequences"]


@pytest.mark.parametrize("stops", [["a"] * 65, [""], [1], "a", ["a" * 1001]])
def test_wrong_stop_sequences_are_refused_in_one_sentence(stops: Any) -> None:
    question = {"role": "user", "content": "Hi"}
    plain = {"model": "m", "max_tokens": 5, "messages": [question], "stop_sequences": stops}
    with pytest.raises(
        ApiError, match="expected a list of at most 64 texts of 1 to 1000 characters"
    ) as caught:
        parse_messages(plain)
    assert caught.value.param == "stop_sequences"


def test_reasoning_that_was_not_asked_for_is_left_out() -> None:
    assert "thinking" not in json.dumps(streamed(thinking=False))
    message: Any = {"content": "Yes", "reasoning": "Hm", "tool_calls": [CALL]}
    whole = message_object(METADATA, "flex", ENDED, message, thinking=False)
    assert [each["type"] for each in whole["content"]] == ["text", "tool_use"]
    assert whole["content"][1]["input"] == {"a": 1}


def test_arguments_that_the_limit_cut_off_are_an_empty_input() -> None:
    cut: Any = {"content": None, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"a'}}]}
    ended = replace(ENDED, finish_reason="length")
    whole = message_object(METADATA, "flex", ended, cut, thinking=False)
    assert (whole["stop_reason"], whole["content"][0]["input"]) == ("max_tokens", {})


def test_a_bad_end_is_an_event_in_anthropics_shape() -> None:
    shape = MessageEvents(METADATA, "flex", thinking=False)
    (event,) = events(shape.error(2, from_outcome(Outcome.EXPIRED)))
    assert (event["type"], event["error"]["type"], event["request_id"]) == ("error", "timeout_error", "r1")
    assert error_object(ApiError(status=429, message="full"))["error"]["type"] == "rate_limit_error"


def test_results_of_tools_go_before_the_text_of_their_message() -> None:
    conversation: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Be brief."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Here."},
                {"type": "tool_result", "tool_use_id": "c", "is_error": True, "content": "no"},
            ],
        },
    ]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert chat_messages(conversation) == [
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": None, "reasoning": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Error: no"},
        {"role": "user", "content": "Here."},
    ]


def test_a_body_becomes_a_chat() -> None:
    plain = {
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "Hi"}],
        "system": "Be brief.",
        "tools": [
            {
                "name": "f",
                "input_schema": {"type": "object"},
                "eager_input_streaming": True,
                "defer_loading": False,
            }
        ],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "output_config": {"effort": "low"},
        "top_k": 4,
        "metadata": {"user_id": "u"},
    }
    assert as_chat(parse_messages(plain), plain) == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "max_tokens": 5,
        "top_k": 4,
    }


def test_the_line_in_which_claude_code_says_who_asks_is_no_part_of_the_prompt() -> None:
    """It differs between conversations, and would be the first of all that they share."""
    line = "x-anthropic-billing-header: cc_version=2.1.197.a3f; cc_entrypoint=cli; cch=00000;"
    rest = {"type": "text", "text": "Be brief."}
    user = {"role": "user", "content": "Hi"}
    for system, said in (
        ([{"type": "text", "text": line}, rest], ["Be brief."]),
        (f"{line}\nBe brief.", ["Be brief."]),
        ([{"type": "text", "text": line}], []),
        ([rest, {"type": "text", "text": f"Not at once: {line}"}], [f"Be brief.\nNot at once: {line}"]),
    ):
        plain = {"max_tokens": 5, "messages": [user], "system": system}
        chat = as_chat(parse_messages(plain), plain)
        assert chat["messages"] == [*({"role": "system", "content": each} for each in said), user]
    assert chat_messages([{"role": "system", "content": line}, user]) == [user]
    assert chat_messages([{"role": "system", "content": line}]) == []


def test_a_document_is_refused_with_the_reason() -> None:
    with pytest.raises(ApiError, match=f"document.*{OTHER_MEDIA}") as caught:
        chat_messages([{"role": "user", "content": [{"type": "document", "source": {}}]}])
    assert caught.value.param == "messages[0].content[0].type"


def image(data: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def part_of(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_images_become_parts_and_those_of_results_follow_them() -> None:
    by_url = {"type": "image", "source": {"type": "url", "url": "https://example.com/a"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [{"type": "text", "text": "b"}, image("AA==")],
    }
    blocks = [{"type": "text", "text": "a"}, image("BB=="), result, by_url]
    assert chat_messages([{"role": "user", "content": blocks}]) == [
        {"role": "tool", "tool_call_id": "t", "content": "b"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                part_of("data:image/png;base64,BB=="),
                part_of("data:image/png;base64,AA=="),
                part_of("https://example.com/a"),
            ],
        },
    ]


@pytest.mark.parametrize("source", [None, {}, {"type": "file", "file_id": "a"}, {"type": "url", "url": 5}])
def test_an_image_without_a_known_source_is_refused(source: object) -> None:
    with pytest.raises(ApiError, match="source is") as caught:
        chat_messages([{"role": "user", "content": [{"type": "image", "source": source}]}])
    assert caught.value.param == "messages[0].content[0].source"


@pytest.mark.parametrize("content", [[], [5], None, 7])
def test_content_that_is_neither_text_nor_blocks_is_refused(content: object) -> None:
    with pytest.raises(ApiError, match=r"messages\[0\].content"):
        chat_messages([{"role": "user", "content": content}])
