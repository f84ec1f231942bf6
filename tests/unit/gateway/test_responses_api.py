"""The Responses API: items as messages, the state of a response, the numbers of its events."""

import base64
import json
import random
import zlib
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import UndecodableDataError
from qlm.domain.outcome import Outcome
from qlm.gateway.api.errors import ApiError, from_outcome, unavailable
from qlm.gateway.api.renamed import renamed
from qlm.gateway.api.responses_api.body import parse_response
from qlm.gateway.api.responses_api.chat import as_chat
from qlm.gateway.api.responses_api.events import ResponseEvents
from qlm.gateway.api.responses_api.items import chat_messages
from qlm.gateway.api.responses_api.objects import output_items
from qlm.gateway.api.responses_api.state import ResponseState, read_state, state_of, with_state
from qlm.gateway.api.schema import parse_chat
from qlm.gateway.core.session_events import SendFinal
from support.requests import a_request

METADATA = a_request().metadata()
STATE = ResponseState({})
TEXT = "It will rain, they say."
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def events(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(each.split(b"\ndata: ")[1]) for each in data.split(b"\n\n") if each]


def streamed(ends: list[int], after: int = -1, shown: int = 0, reason: str = "stop") -> list[dict[str, Any]]:
    """Stream TEXT, one token per letter, in pieces with these ends, to a client that has been shown some."""
    shape = ResponseEvents(METADATA, STATE, "flex", after=after, text_before=TEXT[:shown])
    data, at = shape.opening(), shown
    for end in (each for each in ends if each > shown):
        data += shape.text(end, TEXT[at:end])
        at = end
    return events(data + shape.ending(SendFinal(len(TEXT), TEXT[at:], reason, Outcome.STOP)))


@given(st.lists(st.sets(st.integers(1, len(TEXT))), min_size=2, max_size=2), st.data())
def test_a_stream_goes_on_after_any_event_whatever_its_pieces(
    pieces: list[set[int]], data: st.DataObject
) -> None:
    first = streamed(sorted(pieces[0]))
    numbers = [each["sequence_number"] for each in first]
    assert numbers == sorted(set(numbers))
    after = data.draw(st.sampled_from(numbers))
    shown = min(ResponseEvents(METADATA, STATE, "flex").shown_at(after), len(TEXT))
    rest = streamed(sorted(pieces[1]), after, shown)
    assert all(each["sequence_number"] > after for each in rest)
    deltas = [each["delta"] for each in [*first[: numbers.index(after) + 1], *rest] if "delta" in each]
    assert "".join(deltas) == TEXT
    if rest:
        assert rest[-1] == first[-1], "the last event has the whole response, whoever sends it"


def test_an_answer_without_text_has_an_empty_message() -> None:
    shape = ResponseEvents(METADATA, STATE, "flex")
    last = events(shape.opening() + shape.ending(SendFinal(1, "", "stop", Outcome.STOP)))[-1]
    assert last["response"]["status"] == "completed"
    assert [part["text"] for part in last["response"]["output"][0]["content"]] == [""]


def test_an_answer_that_its_limit_ended_is_incomplete() -> None:
    last = streamed([5], reason="length")[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["output"][-1]["status"] == "incomplete"


def test_reasoning_text_and_calls_are_items_in_their_order() -> None:
    shape = ResponseEvents(METADATA, STATE, "flex")
    data = shape.delta(1, {"role": "assistant", "reasoning": "Hm"})
    data += shape.delta(2, {"reasoning": "m."}) + shape.delta(3, {"content": "Yes"})
    data += shape.delta(4, {"tool_calls": [{"index": 0, **CALL, "function": {"name": "f"}}]})
    data += shape.delta(5, {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]})
    data += shape.derendered_end(
        SendFinal(6, "", "stop", Outcome.STOP), {"tool_calls": [{"index": 1, **CALL}]}, "tool_calls"
    )
    output = events(data)[-1]["response"]["output"]
    assert [each["type"] for each in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "Hmm."}]
    assert (output[2]["arguments"], output[3]["call_id"]) == ("{}", "c")


@pytest.mark.parametrize(("reason", "status"), [("length", "incomplete"), ("stop", "completed")])
def test_an_answer_of_reasoning_alone_is_one_item_in_the_stream_and_later(reason: str, status: str) -> None:
    final = SendFinal(1, "", reason, Outcome.STOP)
    shape = ResponseEvents(METADATA, STATE, "flex")
    data = shape.delta(1, {"role": "assistant", "reasoning": "Hm"}) + shape.derendered_end(final, {}, reason)
    message: Any = {"role": "assistant", "content": None, "reasoning": "Hm"}
    whole = output_items(METADATA.id, message, STATE.tool_names, status)
    assert events(data)[-1]["response"]["output"] == whole
    assert [(each["type"], each["status"]) for each in whole] == [("reasoning", status)]


def test_a_bad_end_fails_the_response_and_a_render_tier_that_is_away_does_not() -> None:
    shape = ResponseEvents(METADATA, STATE, "flex")
    failed = events(shape.error(3, from_outcome(Outcome.FAILED, "broken")))[0]
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert "broken" in failed["response"]["error"]["message"]
    cancelled = events(shape.error(3, from_outcome(Outcome.CANCELLED)))[0]["response"]
    assert (cancelled["status"], cancelled["error"]) == ("cancelled", None)
    away = events(shape.error(3, unavailable("away", "render_unavailable")))[0]
    assert (away["type"], away["code"]) == ("error", "render_unavailable")


@pytest.mark.parametrize(
    "error", [from_outcome(Outcome.OUTPUT_LOST), unavailable("away", "render_unavailable")]
)
def test_a_client_that_resumes_gets_the_error_that_keeps_it_from_that(error: ApiError) -> None:
    shape = ResponseEvents(METADATA, STATE, "flex", after=40)
    (last,) = events(shape.opening() + shape.error(0, error))
    assert last["sequence_number"] == 41


def test_items_that_belong_together_are_one_message() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        call,
        call,
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"role": "assistant", "content": "One."},
        {"role": "assistant", "content": "Or so."},
        {"type": "reasoning", "summary": []},
    ]
    assert chat_messages(items) == [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "reasoning": "Hm.", "content": "I look.", "tool_calls": [CALL, CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "assistant", "content": "One."},
        {"role": "assistant", "content": "Or so."},
    ]


@pytest.mark.parametrize("kind", [["input_text"], {}, 5, None])
def test_a_part_whose_type_is_no_text_is_named(kind: object) -> None:
    with pytest.raises(ApiError, match=r"input\[0\]\.content\[0\]\.type is .*; expected input_text"):
        chat_messages([{"role": "user", "content": [{"type": kind, "text": "a"}]}])


def test_an_image_becomes_a_part() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "https://example.com/a", "detail": "auto"},
    ]
    assert chat_messages([{"role": "user", "content": parts}]) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "https://example.com/a"}},
            ],
        }
    ]


def test_images_of_results_follow_the_last_one() -> None:
    red, blue = ({"type": "image_url", "image_url": {"url": f"https://example.com/{n}"}} for n in "ab")
    calls = [{"type": "function_call", "call_id": id, "name": "see", "arguments": "{}"} for id in ("c", "d")]
    outputs: list[dict[str, Any]] = [
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [
                {"type": "input_text", "text": "Red."},
                {"type": "input_image", "image_url": "https://example.com/a", "detail": "auto"},
            ],
        },
        {
            "type": "function_call_output",
            "call_id": "d",
            "output": [{"type": "input_image", "image_url": "https://example.com/b"}],
        },
    ]
    results = [
        {"role": "tool", "tool_call_id": "c", "content": "Red."},
        {"role": "tool", "tool_call_id": "d", "content": ""},
    ]
    assert chat_messages([*calls, *outputs])[1:] == [*results, {"role": "user", "content": [red, blue]}]
    asked = {"role": "user", "content": "Which?"}
    both = {"role": "user", "content": [red, blue, {"type": "text", "text": "Which?"}]}
    assert chat_messages([*calls, *outputs, asked])[1:] == [*results, both]
    answered = {"role": "assistant", "content": "Two."}
    assert chat_messages([*calls, *outputs, answered])[1:] == [
        *results,
        {"role": "user", "content": [red, blue]},
        answered,
    ]


@pytest.mark.parametrize(
    ("role", "part", "where"),
    [
        ("user", {"type": "input_file", "file_id": "a"}, "type"),
        ("user", {"type": "input_image", "file_id": "a"}, "file_id"),
        ("user", {"type": "input_image"}, "image_url"),
        ("assistant", {"type": "input_image", "image_url": "a"}, "type"),
    ],
)
def test_other_media_are_refused_by_name(role: str, part: dict[str, str], where: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat_messages([{"role": role, "content": [part]}])
    assert caught.value.param == f"input[0].content[0].{where}"


def test_a_body_becomes_a_chat() -> None:
    plain = {
        "input": "Hi",
        "instructions": "Be brief.",
        "max_output_tokens": 7,
        "tools": [{"type": "function", "name": "f", "description": None, "parameters": {}}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "reasoning": {"effort": "low"},
        "slo": {"deadline_ms": 5.0},
        "metadata": {"a": "b"},
    }
    earlier = [{"role": "user", "content": "Before"}]
    assert as_chat(parse_response(plain), plain, earlier) == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            *earlier,
            {"role": "user", "content": "Hi"},
        ],
        "max_completion_tokens": 7,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}},
        },
        "reasoning_effort": "low",
        "slo": {"deadline_ms": 5.0},
    }


def test_marks_of_openais_cache_change_nothing() -> None:
    part = {"type": "input_text", "text": "Hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
    plain = {"input": [{"role": "user", "content": [part]}], "prompt_cache_options": {"mode": "explicit"}}
    chat = as_chat(parse_response(plain), plain, [])
    assert chat == {"messages": [{"role": "user", "content": "Hi"}]}


def test_an_answer_that_was_cut_off_inside_its_reasoning_can_be_continued() -> None:
    plain = {"model": "m", "input": "Go on"}
    cut_off = {"role": "assistant", "content": None, "reasoning": "Hm"}
    chat = parse_chat(as_chat(parse_response(plain), plain, [{"role": "user", "content": "Hi"}, cut_off]))
    assert [each.text for each in chat.messages] == ["Hi", "", "Go on"]


def test_the_state_of_a_response_comes_back() -> None:
    plain = {"input": "Hi", "metadata": {"größe": "🙂"}, "background": True}
    state = state_of(parse_response(plain), plain)
    assert read_state(with_state(METADATA, state)) == state
    assert state.background
    assert read_state(METADATA) is None


def test_a_response_shows_whole_numbers_as_such() -> None:
    scored = {"include": ["message.output_text.logprobs"], "top_logprobs": 2.0}
    plain = {"input": "Hi", "max_output_tokens": 5.0, **scored}
    fields = state_of(parse_response(plain), plain).fields
    assert orjson.dumps([fields["max_output_tokens"], fields["top_logprobs"]]) == b"[5,2]"


def test_a_state_of_an_earlier_version_is_read() -> None:
    text = base64.b85encode(zlib.compress(orjson.dumps([{"user": "u"}, None]))).decode()
    extensions = replace(METADATA.extensions, response_state=text)
    assert read_state(replace(METADATA, extensions=extensions)) == ResponseState({"user": "u"})


def test_a_state_is_in_a_form_that_is_decoded_in_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(base64, "b85decode")
    monkeypatch.delattr(base64, "b85encode")
    state = ResponseState({"user": "u"}, [{"role": "user", "content": "Hi"}])
    assert read_state(with_state(METADATA, state)) == state


def test_an_input_that_is_not_kept_is_not_compressed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    compressed: list[int] = []

    class Compressor:
        def __init__(self) -> None:
            self._made = compressobj()

        def compress(self, plain: bytes) -> bytes:
            compressed.append(len(plain))
            return self._made.compress(plain)

        def flush(self) -> bytes:
            return self._made.flush()

    compressobj = zlib.compressobj
    monkeypatch.setattr(zlib, "compressobj", Compressor)
    noise = random.Random(3).randbytes(1_000_000).hex()
    kept = read_state(with_state(METADATA, ResponseState({}, [{"role": "user", "content": noise}])))
    assert kept == ResponseState({})
    assert 0 < sum(compressed) < 300_000


def test_of_a_response_that_is_not_stored_nothing_is_kept() -> None:
    plain = {"input": "Hi", "metadata": {"a": "b"}, "store": False}
    kept = read_state(with_state(METADATA, state_of(parse_response(plain), plain)))
    assert kept == ResponseState({"store": False})


def test_a_state_that_is_too_large_without_its_input_is_refused() -> None:
    noise = random.Random(3).randbytes(60_000).hex()
    with pytest.raises(ApiError, match="instructions"):
        with_state(METADATA, ResponseState({"instructions": noise}, []))


def test_a_damaged_state_is_named() -> None:
    extensions = replace(METADATA.extensions, response_state="nonsense")
    with pytest.raises(UndecodableDataError, match="response state"):
        read_state(replace(METADATA, extensions=extensions))


def test_errors_about_a_chat_name_the_field_of_the_response() -> None:
    error = ApiError(
        status=400, message="messages[1].content is 5; messages matter", param="messages[1].content"
    )
    assert (renamed(error, {"messages": "input"}).message, renamed(error, {"messages": "input"}).param) == (
        "input[1].content is 5; input matter",
        "input[1].content",
    )
    assert renamed(error, {"tools": "x"}) is error
