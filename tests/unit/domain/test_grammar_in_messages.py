"""A grammar in messages: earlier readers must refuse it, and never see it where there is none."""

from qlm.broker.codec import decode_request, encode_request
from qlm.domain.formats.plain import request_to_plain
from qlm.domain.sampling import Sampling
from support.requests import a_request

GRAMMAR = '{"structured_outputs":{"json_object":true}}'


def test_a_grammar_survives_its_message() -> None:
    request = a_request(grammar=GRAMMAR)
    assert decode_request(encode_request(request)) == request


def test_without_one_a_message_is_as_earlier_versions_wrote_it() -> None:
    plain = request_to_plain(a_request())
    assert "grammar" not in plain["sampling"]
    assert set(request_to_plain(a_request(grammar=GRAMMAR))["sampling"]) == {*plain["sampling"], "grammar"}


def test_a_resume_keeps_it() -> None:
    assert Sampling(max_tokens=5, grammar=GRAMMAR).after(2).grammar == GRAMMAR
