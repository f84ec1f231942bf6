import dataclasses
from typing import Any

import orjson
import pytest
from hypothesis import given

from qlm.domain.errors import InvalidValueError, UndecodableDataError
from qlm.domain.formats.extensions import (
    EXTENSIONS_BYTES_MAX,
    LEVELS_MAX,
    ClassExtensions,
    LogExtensions,
    RequestExtensions,
    extensions_from_plain,
    extensions_to_plain,
    merged,
)
from qlm.domain.formats.field_checks import RENDER_STATE_CHARACTERS_MAX
from qlm.domain.formats.plain import request_from_plain, request_to_plain
from qlm.domain.ids import RequestId
from qlm.domain.lease import Epoch
from qlm.domain.output import LogEntry
from support.extensions import (
    CLASS_PLAIN,
    LATER,
    LOG_PLAIN,
    OF_CLASS,
    OF_LOG,
    OF_REQUEST,
    REQUEST_PLAIN,
    class_plains,
    log_extensions,
    log_plains,
    request_plains,
)
from support.requests import a_request

KINDS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (ClassExtensions, CLASS_PLAIN),
    (LogExtensions, LOG_PLAIN),
    (RequestExtensions, REQUEST_PLAIN),
)


def _through_json(plain: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = orjson.loads(orjson.dumps(plain))
    return read


@given(request_plains)
def test_every_field_of_a_request_survives_a_rewriting(plain: dict[str, Any]) -> None:
    read = extensions_from_plain(RequestExtensions, _through_json(plain))
    assert extensions_to_plain(read) == plain
    assert extensions_from_plain(RequestExtensions, _through_json(extensions_to_plain(read))) == read


@given(class_plains)
def test_every_field_of_a_class_survives_a_rewriting(plain: dict[str, Any]) -> None:
    assert extensions_to_plain(extensions_from_plain(ClassExtensions, _through_json(plain))) == plain


@given(log_plains)
def test_every_field_of_a_log_survives_a_rewriting(plain: dict[str, Any]) -> None:
    assert extensions_to_plain(extensions_from_plain(LogExtensions, _through_json(plain))) == plain


@pytest.mark.parametrize(("kind", "plain"), KINDS)
def test_the_examples_have_every_field(kind: Any, plain: dict[str, Any]) -> None:
    names = {"logprobs_at" if name.startswith("logprobs.") else name for name in plain}
    assert names == {each.name for each in dataclasses.fields(kind)} - {"unknown"}


@pytest.mark.parametrize(("kind", "plain"), KINDS)
def test_nothing_is_written_of_fields_that_are_not_set(kind: Any, plain: dict[str, Any]) -> None:
    assert extensions_to_plain(kind()) == {}
    assert extensions_from_plain(kind, dict.fromkeys(plain)) == kind()


@given(log_extensions, log_extensions)
def test_merged_extensions_have_all_fields_and_the_latter_of_two(
    former: LogExtensions, latter: LogExtensions
) -> None:
    both = extensions_to_plain(former) | extensions_to_plain(latter)
    assert extensions_to_plain(merged(former, latter)) == both


@given(log_extensions, log_extensions)
def test_merged_extensions_are_those_of_the_merged_fields(
    former: LogExtensions, latter: LogExtensions
) -> None:
    both = extensions_to_plain(former) | extensions_to_plain(latter)
    read = [extensions_from_plain(LogExtensions, extensions_to_plain(each)) for each in (former, latter)]
    assert merged(read[0], read[1]) == extensions_from_plain(LogExtensions, both)


def test_pieces_of_log_probabilities_at_one_offset_count_once_when_they_are_merged() -> None:
    former = LogExtensions(logprobs_at=((0, "AAAA"), (3, "BBBB")))
    latter = LogExtensions(logprobs_at=((3, "CCCC"), (4, "DDDD")))
    assert merged(former, latter).logprobs_at == ((0, "AAAA"), (3, "CCCC"), (4, "DDDD"))


def test_a_request_without_extensions_is_written_as_before() -> None:
    request = a_request()
    assert "extensions" not in request_to_plain(request)
    bare = dataclasses.replace(request, extensions=RequestExtensions())
    assert "extensions" not in request_to_plain(bare)
    assert request_from_plain(request_to_plain(bare)) == request


def test_a_request_keeps_its_extensions_without_its_prompt() -> None:
    assert dataclasses.replace(a_request(), extensions=OF_REQUEST).metadata().extensions == OF_REQUEST


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("p_met", 1.5),
        ("p_met", 10**400),
        ("p_met", "0.5"),
        ("p_met", True),
        ("render_state", 3),
        ("render_state", "x" * (RENDER_STATE_CHARACTERS_MAX + 1)),
        ("task_id", ""),
        ("task_id", "t" * 101),
        ("task_calls", -1),
        ("task_calls", 1.0),
        ("task_deadline_ns", 0),
        ("task_deadline_ns", 2**63),
        ("deadline_ms", -1),
        ("deadline_ms", [1]),
        ("reader_tokens_per_s", 0),
        ("cls.deadline_ms", -1),
        ("cls.p_met", -0.1),
        ("cls", []),
        ("a_later_field", [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(field: str, value: Any) -> None:
    plain: dict[str, Any] = {"cls": dict(CLASS_PLAIN)} | {
        k: v for k, v in REQUEST_PLAIN.items() if k != "cls"
    }
    outer, _, inner = field.partition(".")
    if inner:
        plain[outer][inner] = value
    else:
        plain[outer] = value
    message = request_to_plain(a_request()) | {"extensions": plain}
    with pytest.raises(
        UndecodableDataError, match=rf"^message cannot be read: extensions\.{field} is "
    ) as caught:
        request_from_plain(message)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("extensions", [None, [], "x", 1])
def test_what_is_no_object_is_refused(extensions: Any) -> None:
    message = request_to_plain(a_request()) | {"extensions": extensions}
    with pytest.raises(UndecodableDataError, match=r"extensions is .*; expected a JSON object"):
        request_from_plain(message)


def test_calls_and_deadline_of_a_task_need_the_task() -> None:
    with pytest.raises(InvalidValueError, match=r"extensions\.task_id is None"):
        RequestExtensions(task_calls=3)
    with pytest.raises(InvalidValueError, match=r"extensions\.task_id is None"):
        RequestExtensions(task_deadline_ns=3)


def test_a_render_state_of_a_log_has_its_tokens() -> None:
    for incomplete in ({"render_state": "x"}, {"render_state_tokens": 1}):
        with pytest.raises(InvalidValueError, match=r"extensions\.render_state_tokens"):
            extensions_from_plain(LogExtensions, incomplete)


def test_a_text_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"extensions\.task_id"):
        RequestExtensions(task_id="\ud800")


def test_extensions_have_a_largest_size() -> None:
    room = EXTENSIONS_BYTES_MAX - len('{"later": ""}')
    assert extensions_from_plain(RequestExtensions, {"later": "x" * room})
    with pytest.raises(
        InvalidValueError, match=f"extensions is {EXTENSIONS_BYTES_MAX + 1}; expected at most"
    ):
        extensions_from_plain(RequestExtensions, {"later": "x" * (room + 1)})
    large = extensions_from_plain(LogExtensions, {"later": "x" * (room + 1)})
    with pytest.raises(InvalidValueError, match="extensions is"):
        LogEntry(id=RequestId("r"), epoch=Epoch(1, 1), offset=0, extensions=large)


def test_unknown_fields_are_as_deep_as_may_be() -> None:
    deep: Any = 1
    for _ in range(LEVELS_MAX):
        deep = [deep]
    read = extensions_from_plain(RequestExtensions, {"later": deep})
    assert orjson.loads(orjson.dumps(extensions_to_plain(read))) == {"later": deep}


def test_the_examples_carry_later_fields() -> None:
    for example in (OF_CLASS, OF_LOG, OF_REQUEST, OF_REQUEST.cls):
        assert {name: extensions_to_plain(example)[name] for name in LATER} == LATER
