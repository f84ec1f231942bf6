"""Dead letters are read as far as that goes, whatever lies in the queue."""

from hypothesis import given
from hypothesis import strategies as st

from qlm.broker.codec import DeadLetter, encode_dead_letter, encode_request
from qlm.domain.ids import QueueName
from qlm.gateway.sessions.operators.dead_letters import decode_letter, has_id
from support.requests import a_request

QUEUE = QueueName("qlm.class.m")


def letter_around(body: bytes, at_ns: int = 5) -> bytes:
    return encode_dead_letter(DeadLetter(reason="why", queue=QUEUE, at_ns=at_ns, body=body))


@given(st.binary())
def test_any_bytes_are_a_letter_that_says_why_it_cannot_be_read(body: bytes) -> None:
    for letter, size in ((decode_letter(body), len(body)), (decode_letter(letter_around(body)), len(body))):
        assert letter.size_bytes == size
        assert letter.metadata is None
        assert letter.unreadable


def test_a_readable_letter_tells_of_its_request() -> None:
    request = a_request("r1")
    body = letter_around(encode_request(request))
    letter = decode_letter(body)
    assert (letter.reason, letter.queue, letter.at_ns, letter.unreadable) == ("why", QUEUE, 5, "")
    assert letter.metadata == request.metadata()
    assert letter.size_bytes == len(encode_request(request))
    assert has_id("r1", body)
    assert has_id(letter.id, body)
    assert not has_id("r2", body)


@given(st.binary(), st.binary(), st.integers(0, 9), st.integers(0, 9))
def test_different_letters_have_different_ids(one: bytes, other: bytes, at_ns: int, other_at_ns: int) -> None:
    ids = decode_letter(letter_around(one, at_ns)).id, decode_letter(letter_around(other, other_at_ns)).id
    assert (ids[0] == ids[1]) == ((one, at_ns) == (other, other_at_ns))
