"""Grammars and adapters in messages: earlier readers must refuse them, and see none where there are none."""

from dataclasses import replace
from typing import Any

import pytest

from qlm.broker.codec import decode_request, encode_request
from qlm.domain.formats.plain import request_to_plain
from qlm.domain.sampling import Sampling
from support.requests import a_request

LATER = [{"grammar": '{"structured_outputs":{"json_object":true}}'}, {"adapter": "poet"}]


@pytest.mark.parametrize("later", LATER)
def test_it_survives_its_message(later: dict[str, Any]) -> None:
    request = a_request(**later)
    assert decode_request(encode_request(request)) == request


@pytest.mark.parametrize("later", LATER)
def test_without_it_a_message_is_as_earlier_versions_wrote_it(later: dict[str, Any]) -> None:
    plain = request_to_plain(a_request())
    assert not later.keys() & plain["sampling"].keys()
    assert request_to_plain(a_request(**later))["sampling"].keys() == plain["sampling"].keys() | later.keys()


@pytest.mark.parametrize("later", LATER)
def test_a_resume_keeps_it(later: dict[str, Any]) -> None:
    assert Sampling(max_tokens=5, **later).after(2) == Sampling(max_tokens=3, **later)


def test_a_request_for_an_adapter_is_one_for_its_base() -> None:
    base, adapted = a_request(), a_request(adapter="poet")
    assert replace(adapted, sampling=base.sampling) == base
    assert (base.answers_as, adapted.answers_as) == (base.model, "poet")
