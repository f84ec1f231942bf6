from dataclasses import replace
from typing import Any

import orjson
import pytest

from qlm.domain.attainment import Attainment
from qlm.domain.group import request_class
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.request import Answer, AnswerKind, RequestMetadata
from qlm.domain.sampling import Sampling
from qlm.domain.slo import BatchSlo
from qlm.gateway.api.errors import from_outcome
from qlm.gateway.api.openai_shapes import StreamForm, StreamShape, answer_object
from qlm.gateway.core.session_events import SendFinal


def metadata(kind: AnswerKind) -> RequestMetadata:
    return RequestMetadata(
        id=RequestId("r"),
        cls=request_class(ModelId("m"), BatchSlo(), 0),
        tenant="t",
        slo=BatchSlo(),
        arrival_ns=7_000_000_000,
        prompt_tokens=5,
        sampling=Sampling(max_tokens=10),
        answer=Answer(kind=kind),
    )


def resumable(kind: AnswerKind) -> StreamShape:
    return StreamShape(metadata(kind), "flex", form=StreamForm.RESUMABLE)


FINAL = SendFinal(3, "end", "stop", Outcome.STOP)


def events(stream: bytes) -> list[tuple[str | None, Any]]:
    """The id and the data of each event."""
    read = []
    for block in stream.decode().strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        data = lines["data"]
        read.append((lines.get("id"), data if data == "[DONE]" else orjson.loads(data)))
    return read


@pytest.mark.parametrize("text", ["plain", 'quote " and \n line', "äöü 日本", "\u2028"])
def test_an_event_carries_its_text_and_the_tokens_so_far(text: str) -> None:
    ((id, data),) = events(resumable(AnswerKind.CHAT).text(4, text))
    assert id == "4"
    assert data["choices"] == [
        {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    ]
    assert (data["object"], data["id"], data["created"]) == ("chat.completion.chunk", "chatcmpl-r", 7)
    assert data["service_tier"] == "flex"


def test_a_completion_event_has_text() -> None:
    ((_, data),) = events(StreamShape(metadata(AnswerKind.COMPLETION), "flex").text(4, "x"))
    assert data["choices"][0]["text"] == "x"
    assert data["object"] == "text_completion"


def test_a_chat_stream_begins_with_its_role_and_a_completion_does_not() -> None:
    ((_, data),) = events(StreamShape(metadata(AnswerKind.CHAT), "flex").role())
    assert data["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert StreamShape(metadata(AnswerKind.COMPLETION), "flex").role() == b""


@pytest.mark.parametrize("kind", AnswerKind)
def test_the_last_text_and_the_reason_share_one_event(kind: AnswerKind) -> None:
    (id, last), (_, done) = events(resumable(kind).ending(FINAL))
    assert (id, last["choices"][0]["finish_reason"], done) == ("3", "stop", "[DONE]")
    shown = last["choices"][0]
    assert (shown["delta"]["content"] if kind is AnswerKind.CHAT else shown["text"]) == "end"


def test_usage_comes_last_with_no_choices_and_is_null_before() -> None:
    shape = StreamShape(metadata(AnswerKind.CHAT), "flex", include_usage=True)
    (_, text), (_, last), (_, usage), _ = events(shape.text(1, "a") + shape.ending(FINAL))
    assert (text["usage"], last["usage"]) == (None, None)
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


@pytest.mark.parametrize("kind", AnswerKind)
@pytest.mark.parametrize("text", ["end", ""])
def test_the_last_event_and_the_usage_say_by_how_much_the_answer_was_late(
    kind: AnswerKind, text: str
) -> None:
    shape = StreamShape(metadata(kind), "flex", include_usage=True)
    late = replace(FINAL, text=text, attainment=Attainment(met=False, late_by_s=1.0001))
    (_, before), (_, last), (_, usage), _ = events(shape.text(1, "a") + shape.ending(late))
    assert "qlm" not in before
    assert last["qlm"] == usage["usage"]["qlm"] == {"met": False, "late_ms": 1001}


def test_in_a_stream_with_usage_so_far_only_the_last_says_whether_it_was_late() -> None:
    shape = StreamShape(metadata(AnswerKind.CHAT), "flex", continuous_usage=True)
    met = replace(FINAL, attainment=Attainment(met=True, late_by_s=0.0))
    (_, before), (_, last), _ = events(shape.text(1, "a") + shape.ending(met))
    assert "qlm" not in before["usage"]
    assert last["usage"]["qlm"] == {"met": True, "late_ms": 0}


def test_the_end_of_a_stream_without_an_objective_is_as_ever() -> None:
    assert b"qlm" not in StreamShape(metadata(AnswerKind.CHAT), "flex", include_usage=True).ending(FINAL)


def test_an_error_event_says_that_the_objective_was_missed() -> None:
    shape = StreamShape(metadata(AnswerKind.CHAT), "flex")
    ended = shape.error(0, from_outcome(Outcome.EXPIRED), Attainment(met=False))
    assert orjson.loads(ended.split(b"data: ")[1])["qlm"] == {"met": False}


def test_usage_may_be_in_each_event() -> None:
    shape = StreamShape(metadata(AnswerKind.CHAT), "flex", include_usage=True, continuous_usage=True)
    ((_, data),) = events(shape.text(2, "a"))
    assert data["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("form", "comment"), [(StreamForm.STANDARD, b": keep-alive\n\n"), (StreamForm.PLAIN, b"")]
)
def test_ids_are_only_in_resumable_streams_and_comments_not_in_plain_ones(
    form: StreamForm, comment: bytes
) -> None:
    shape = StreamShape(metadata(AnswerKind.CHAT), "flex", form=form)
    assert {id for id, _ in events(shape.role() + shape.text(1, "a") + shape.ending(FINAL))} == {None}
    assert shape.error(2, from_outcome(Outcome.ENGINE_LOST)).startswith(b"event: error\ndata: ")
    assert shape.keep_alive() == comment


def test_a_comment_ends_no_event_once_ids_were_sent() -> None:
    shape = resumable(AnswerKind.CHAT)
    assert shape.keep_alive() == b": keep-alive\n\n"
    shape.text(1, "a")
    assert shape.keep_alive() == b": keep-alive\n"


STOPPED = SendFinal(3, "end", "stop", Outcome.STOP, stop_reason="END", cached_tokens=2)


@pytest.mark.parametrize("kind", AnswerKind)
def test_an_answer_says_what_ended_it_what_was_cached_and_who_gave_it(kind: AnswerKind) -> None:
    for final, reason, cached in ((STOPPED, "END", {"cached_tokens": 2}), (FINAL, None, None)):
        whole = answer_object(metadata(kind), final, "flex", "qlm-1")
        shape = StreamShape(metadata(kind), "flex", fingerprint="qlm-1", include_usage=True)
        (_, first), (_, last), (_, usage), _ = events(shape.text(1, "a") + shape.ending(final))
        assert whole["choices"][0]["stop_reason"] == last["choices"][0]["stop_reason"] == reason
        assert "stop_reason" not in first["choices"][0]
        assert {each["system_fingerprint"] for each in (whole, first, last, usage)} == {"qlm-1"}
        assert whole["usage"] == usage["usage"]
        assert whole["usage"].get("prompt_tokens_details") == cached


def test_an_error_event_is_followed_by_done() -> None:
    stream = resumable(AnswerKind.CHAT).error(2, from_outcome(Outcome.ENGINE_LOST))
    assert stream.startswith(b"event: error\nid: 2\ndata: ")
    assert stream.endswith(b"data: [DONE]\n\n")


def test_whole_answers_have_openais_shape() -> None:
    chat = answer_object(metadata(AnswerKind.CHAT), FINAL, "flex")
    assert chat["object"] == "chat.completion"
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": "end", "refusal": None}
    completion = answer_object(metadata(AnswerKind.COMPLETION), FINAL, "flex")
    assert completion["object"] == "text_completion"
    assert (completion["choices"][0]["text"], completion["usage"]["total_tokens"]) == ("end", 8)
