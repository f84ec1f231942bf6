import dataclasses
import string
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.broker.codec import (
    DeadLetter,
    RequestBody,
    decode_dead_letter,
    decode_request,
    encode_dead_letter,
    encode_request,
    letter_request_id,
)
from qlm.domain.errors import UndecodableDataError
from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId, QueueName, RequestId
from qlm.domain.request import Answer, AnswerKind, Request
from qlm.domain.sampling import Sampling
from qlm.domain.slo import BatchSlo, DeadlineSlo, OnMiss, ReadingSlo, Slo, TokenSlo
from support.extensions import LATER, OF_REQUEST, request_extensions

REQUEST = Request(
    id=RequestId("r-1"),
    cls=RequestClass(ModelId("meta/llama"), "ttft-400ms", target_ms=400.0, priority=-2),
    tenant="größe",
    slo=TokenSlo(ttft_ms=400, tpot_ms=40),
    on_miss=OnMiss.DROP,
    arrival_ns=1_700_000_000_000_000_001,
    prompt_tokens=3,
    prompt_tail=(2, 3),
    prompt_ids=(1, 2, 3),
    sampling=Sampling(max_tokens=7, seed=5, logit_bias=((3, -1.5),), stop_token_ids=(9,)),
    answer=Answer(kind=AnswerKind.CHAT, stop=("\n\n", "🙂")),
    fingerprint="f",
    detached=True,
)

slos: st.SearchStrategy[Slo] = st.one_of(
    st.builds(DeadlineSlo, deadline_ms=st.floats(1, 1e6)),
    st.builds(TokenSlo, ttft_ms=st.floats(1, 1e6), tpot_ms=st.none() | st.floats(1, 1e3)),
    st.builds(ReadingSlo, ttft_ms=st.floats(1, 1e6), tokens_per_s=st.floats(0.1, 100)),
    st.just(BatchSlo()),
)


def test_a_body_with_its_request_is_not_decoded() -> None:
    body = RequestBody.of(REQUEST)
    assert body == encode_request(REQUEST)
    assert decode_request(body) is REQUEST
    assert decode_request(bytes(body)) == REQUEST


@given(
    slo=slos,
    extensions=request_extensions,
    prompt_ids=st.lists(st.integers(0, 200_000), min_size=1, max_size=30).map(tuple),
    text=st.text(max_size=20),
    temperature=st.floats(0, 2),
)
def test_a_request_survives_the_round_trip(
    slo: Slo, extensions: RequestExtensions, prompt_ids: tuple[int, ...], text: str, temperature: float
) -> None:
    request = dataclasses.replace(
        REQUEST,
        slo=slo,
        extensions=extensions,
        prompt_ids=prompt_ids,
        prompt_tokens=len(prompt_ids),
        tenant=text,
        answer=Answer(kind=AnswerKind.COMPLETION, stop=(text,), echo_text=text),
        sampling=Sampling(max_tokens=1, temperature=temperature),
    )
    assert decode_request(encode_request(request)) == request


def test_every_field_of_a_request_is_in_its_message() -> None:
    assert decode_request(encode_request(REQUEST)) == REQUEST


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", b"[]", b"null", b'{"version": 2}', b"{}", b'{"version": 1}']
)
def test_an_unreadable_body_is_refused_with_one_kind_of_error(body: bytes) -> None:
    with pytest.raises(UndecodableDataError, match="message"):
        decode_request(body)


@pytest.mark.parametrize("field", sorted(orjson.loads(encode_request(REQUEST))))
def test_a_request_without_one_of_its_fields_is_refused(field: str) -> None:
    plain = orjson.loads(encode_request(REQUEST))
    del plain[field]
    with pytest.raises(UndecodableDataError):
        decode_request(orjson.dumps(plain))


def test_the_error_about_a_huge_body_is_short() -> None:
    with pytest.raises(UndecodableDataError) as caught:
        decode_request(b"x" * 1_000_000)
    assert len(str(caught.value)) < 300


@given(
    reason=st.text(max_size=50),
    queue=st.text(string.printable, max_size=20),
    at_ns=st.integers(0, 2**62),
    body=st.binary(max_size=200),
)
def test_a_dead_letter_keeps_the_original_body_byte_by_byte(
    reason: str, queue: str, at_ns: int, body: bytes
) -> None:
    letter = DeadLetter(reason=reason, queue=QueueName(queue), at_ns=at_ns, body=body)
    assert decode_dead_letter(encode_dead_letter(letter)) == letter


@pytest.mark.parametrize("body", [b"", b"x\ny", b'{"version": 9}\n', b'{"version": 1, "reason": 3}\n'])
def test_what_is_no_dead_letter_is_refused(body: bytes) -> None:
    with pytest.raises(UndecodableDataError):
        decode_dead_letter(body)


def letter_with(body: bytes) -> bytes:
    return encode_dead_letter(DeadLetter(reason="why r-1", queue=QueueName("q"), at_ns=0, body=body))


@pytest.mark.parametrize(
    "letter",
    [
        letter_with(encode_request(REQUEST)),
        letter_with(orjson.dumps({"version": 99, "id": "r-1", "model": 7})),
        b'{"version": 2}\n' + encode_request(REQUEST),
    ],
)
def test_a_dead_letter_of_any_version_tells_whose_message_it_holds(letter: bytes) -> None:
    assert letter_request_id(letter) == "r-1"


@pytest.mark.parametrize(
    "letter",
    [
        b"",
        encode_request(REQUEST),  # no dead letter
        letter_with(b""),
        letter_with(encode_request(REQUEST)[:-1]),
        letter_with(b"[" + encode_request(REQUEST) + b"]"),
        letter_with(b'{"id": 7}'),
        letter_with(b'{"before": "r-1"}'),
        letter_with(b"[" * 5000),
        letter_with(b"\xff"),
    ],
)
def test_a_dead_letter_that_holds_no_message_of_a_request_names_none(letter: bytes) -> None:
    assert letter_request_id(letter) is None


def test_only_a_late_request_tells_older_readers_of_late_classes() -> None:
    """They refuse a class with a field that they do not know, and a message with it becomes a dead letter."""
    plain = orjson.loads(encode_request(REQUEST))
    assert plain["cls"].keys() == {"model", "slo", "cluster", "priority", "target_ms"}
    late = dataclasses.replace(REQUEST, cls=REQUEST.cls.missed())
    assert orjson.loads(encode_request(late))["cls"]["late"] is True
    assert decode_request(encode_request(late)) == late


def test_only_requests_with_a_trace_carry_one() -> None:
    """Messages of earlier versions have none, and are read."""
    assert "traceparent" not in orjson.loads(encode_request(REQUEST))
    traced = dataclasses.replace(REQUEST, traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
    assert decode_request(encode_request(traced)) == traced


VERSION_1 = Path(__file__).with_name("request_v1.json").read_bytes()
"""A message as version 1 wrote it. It is never written anew: fleets have such messages in their queues."""


def test_a_message_of_version_1_is_read() -> None:
    assert decode_request(VERSION_1) == REQUEST


def test_readers_of_version_1_can_read_what_is_written() -> None:
    """During a rolling update gateways may be newer than agents, which do not know new inner fields."""
    former, now = orjson.loads(VERSION_1), orjson.loads(encode_request(REQUEST))
    assert now["version"] == 1, (
        "older readers refuse any other: say in docs/serving-operations.md how to get there"
    )
    assert now == {**now, **former}


def test_extensions_are_one_more_key_that_readers_of_version_1_leave_out() -> None:
    extended = dataclasses.replace(REQUEST, extensions=OF_REQUEST)
    former, now = orjson.loads(encode_request(REQUEST)), orjson.loads(encode_request(extended))
    assert now == former | {"extensions": now["extensions"]}
    assert LATER.keys() <= now["extensions"].keys()
    assert decode_request(encode_request(decode_request(encode_request(extended)))) == extended


def test_a_reader_leaves_out_what_a_newer_writer_tells_besides() -> None:
    newer = {**orjson.loads(VERSION_1), "a_later_field": {"x": 1}}
    assert decode_request(orjson.dumps(newer)) == REQUEST


@pytest.mark.parametrize(
    "body",
    [b"[" * 1000 + b"]" * 1000, b'{"version": ' + b"[" * 1000 + b"]" * 1000 + b"}", b"[" * 5000],
)
def test_a_message_with_too_many_levels_is_undecodable(body: bytes) -> None:
    for decode in (decode_request, decode_dead_letter):
        with pytest.raises(UndecodableDataError) as caught:
            decode(body)
        assert len(str(caught.value)) < 400


def other_values(value: object) -> list[object]:
    """Values of JSON of other types than `value` has."""
    others: list[object] = ["2026", None, 7, 7.5, True, ["x"], {"x": 1}]
    numbers = (int, float)
    return [
        each for each in others if type(each) not in (numbers if type(value) in numbers else (type(value),))
    ]


PLAIN = orjson.loads(encode_request(REQUEST))
FIELDS = [
    *((name,) for name in ("id", "tenant", "arrival_ns", "prompt_tokens", "fingerprint", "detached")),
    *((name,) for name in ("prompt_ids", "prompt_tail", "slo", "cls", "sampling", "answer")),
    *(("cls", name) for name in PLAIN["cls"]),
    *(("sampling", name) for name in PLAIN["sampling"] if name != "seed"),
    *(("answer", name) for name in PLAIN["answer"] if name not in ("kind", "stop")),
    *(("slo", name) for name in PLAIN["slo"] if name != "kind"),
]
OPTIONAL = {("cls", "target_ms"), ("slo", "tpot_ms")}


def with_field(path: tuple[str, ...], value: object) -> bytes:
    plain = orjson.loads(orjson.dumps(PLAIN))
    inner = plain
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return orjson.dumps(plain)


def value_at(path: tuple[str, ...]) -> object:
    found: object = PLAIN
    for name in path:
        assert isinstance(found, dict)
        found = found[name]
    return found


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
def test_a_field_of_another_type_makes_a_message_undecodable(path: tuple[str, ...]) -> None:
    """It would end agents, and keep the queues from being indexed, where something computes with it."""
    for value in other_values(value_at(path)):
        if (value is None and path in OPTIONAL) or (value is True and path[0] == "slo"):
            continue
        with pytest.raises(UndecodableDataError, match="message cannot be read"):
            decode_request(with_field(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("arrival_ns",), -1),
        (("arrival_ns",), 2**63),
        (("prompt_ids",), [1, 2, "3"]),
        (("prompt_ids",), [1, 2, -3]),
        (("prompt_ids",), [1, 2, 2**32]),
        (("prompt_ids",), [1, 2, 3.0]),
        (("prompt_tail",), [None]),
        (("cls", "target_ms"), 1e308),
        (("cls", "target_ms"), 0),
        (("cls", "priority"), 2**53),
        (("cls", "model"), "m" * 300),
        (("cls", "slo"), "ttft-" + "9" * 250),
        (("cls", "cluster"), "/" * 80),
        (("cls", "slo"), "ttft-1s-speed-quick"),
        (("cls", "slo"), "ttft-1s-speed-nan"),
        (("sampling", "seed"), "5"),
        (("sampling", "stop_token_ids"), ["9"]),
        (("sampling", "eos_token_ids"), [[]]),
        (("sampling", "seed"), 2**64 - 1),
        (("sampling", "max_tokens"), 2**64 - 1),
        (("sampling", "logit_bias"), [[1e308, 0.5]]),
        (("sampling", "logit_bias"), [[2**64 - 1, 0.5]]),
        (("sampling", "logit_bias"), [[3, "nan"]]),
        (("sampling", "logit_bias"), [[3, "inf"]]),
        (("answer", "stop"), ["\n", 7]),
    ],
)
def test_a_value_that_nothing_can_compute_with_makes_a_message_undecodable(
    path: tuple[str, ...], value: object
) -> None:
    with pytest.raises(UndecodableDataError, match="message cannot be read"):
        decode_request(with_field(path, value))
