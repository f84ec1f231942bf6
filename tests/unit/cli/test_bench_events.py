"""Server-sent events, and how the tokens of each are counted."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.cli.bench import events
from qlm.cli.bench.events import Answer, Event, EventParser

LINES = b': ping\n\nid: 3\ndata: {"a": 1}\n\nevent: error\ndata: x\ndata: y\n\ndata: [DONE]\n\n'
MIXED = b': ping\n\nid: 3\rdata: {"a": 1}\n\r\nevent: error\r\ndata: x\r\ndata: y\r\n\rdata: [DONE]\r\r'
STREAMS = (LINES, LINES.replace(b"\n", b"\r\n"), LINES.replace(b"\n", b"\r"), MIXED)


@given(st.sampled_from(STREAMS), st.lists(st.integers(0, len(LINES) + 10), max_size=8))
def test_events_are_the_same_however_lines_end_and_bytes_are_cut(stream: bytes, cuts: list[int]) -> None:
    parser = EventParser()
    ends = [*sorted(cuts), len(stream)]
    begins = [0, *ends[:-1]]
    found = [
        event for begin, end in zip(begins, ends, strict=True) for event in parser.feed(stream[begin:end])
    ]
    assert found == [Event("", "3", '{"a": 1}'), Event("error", "", "x\ny"), Event("", "", "[DONE]")]


def answer(*data: tuple[dict[str, Any], str]) -> Answer:
    taken = Answer()
    for second, (fields, place) in enumerate(data):
        taken.take(Event("", place, json.dumps(fields)), float(second))
    return taken


def choice(text: str, so_far: int | None = None, ids: list[int] | None = None, **more: Any) -> dict[str, Any]:
    usage = {} if so_far is None else {"usage": {"prompt_tokens": 7, "completion_tokens": so_far}}
    return {"choices": [{"text": text, **({} if ids is None else {"token_ids": ids}), **more}], **usage}


END = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}


@pytest.mark.parametrize(
    ("data", "tokens", "how"),
    [
        ([(choice("a", 2), ""), (choice("", 2), ""), (choice("b", 5), "")], [2, 0, 3], events.USAGE),
        ([(choice("a", ids=[1, 2]), ""), (choice("b", ids=[3]), ""), (END, "")], [2, 1], events.IDS),
        ([(choice("a"), "1"), (choice("b"), "5"), (END, "5")], [1, 4], events.PLACES),
        ([(choice("a"), "100"), (choice("b"), "101"), (END, "")], [3, 2], events.SPREAD),
        ([(choice("a"), "9" * 5000), (choice("b"), "5"), (END, "")], [3, 2], events.SPREAD),
        ([(choice(""), ""), (choice("a"), ""), (choice("b"), ""), (END, "")], [0, 3, 2], events.SPREAD),
        ([(choice("a", 0), ""), (choice("b", 0), ""), (END, "")], [3, 2], events.SPREAD),
        ([(choice("a", 0), ""), (choice("b", 0), "")], [1, 1], events.EVENTS),
        ([(choice("a"), ""), (choice("b"), "")], [1, 1], events.EVENTS),
        ([], [], events.EVENTS),
    ],
)
def test_tokens_are_counted_in_the_best_way_that_the_events_allow(
    data: list[tuple[dict[str, Any], str]], tokens: list[int], how: str
) -> None:
    chunks, counted = answer(*data).chunks()
    assert [each.tokens for each in chunks] == tokens
    assert counted == how


def test_texts_of_chat_and_of_reasoning_count() -> None:
    deltas = [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}, {"content": "yes"}]
    taken = answer(*(({"choices": [{"delta": each}]}, "") for each in deltas))
    assert [each.text for each in taken.pieces] == [False, True, True]


def test_the_server_says_that_an_answer_is_complete() -> None:
    assert not answer((choice("a"), "")).finished
    assert answer((choice("a", finish_reason="stop"), "")).finished
    done = Answer()
    done.take(Event("", "", "[DONE]"), 1.0)
    assert done.finished


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (Event("error", "", '{"message": "gone"}'), "gone"),
        (Event("", "", '{"error": {"message": "lost"}}'), "lost"),
        (Event("", "", '{"error": "text"}'), "text"),
        (Event("", "", "{"), "an event that is not JSON"),
        *(
            (Event("", "", data), "an event that is no part of a completion")
            for data in (
                '{"choices": 5}',
                '{"choices": ["text"]}',
                '{"choices": [{"delta": "text"}]}',
                '{"choices": [{"token_ids": 5}]}',
                '{"usage": [1]}',
                '{"usage": {"completion_tokens": "3"}}',
                '{"usage": {"prompt_tokens": -1}}',
                '{"usage": {"completion_tokens": 100000001}}',
            )
        ),
    ],
)
def test_an_error_event_is_the_error_of_the_answer(event: Event, message: str) -> None:
    taken = Answer()
    taken.take(event, 1.0)
    assert taken.error == message
