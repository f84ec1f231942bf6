"""What an engine's refusal tells: its own words, and not the JSON around them."""

import orjson
import pytest

from qlm.agents.engines.http.statuses import error_of
from qlm.domain.errors import EngineRefusedError


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "no such grammar", "type": "BadRequestError", "param": None, "code": 400}},
        {"message": "no such grammar", "object": "error"},
        {"detail": "no such grammar"},
    ],
)
def test_a_refusal_has_the_words_of_the_engine(body: object) -> None:
    error = error_of(400, orjson.dumps(body))
    assert isinstance(error, EngineRefusedError)
    assert str(error) == "the engine answered 400: no such grammar"


@pytest.mark.parametrize("body", [b"no", b'{"error": 5}', b'{"detail": [{"loc": "a"}]}', b"[1]", b""])
def test_an_answer_of_another_form_is_shown_as_it_is(body: bytes) -> None:
    assert str(error_of(502, body)) == f"the engine answered 502: {body.decode()}"


def test_a_long_refusal_is_cut() -> None:
    message = str(error_of(400, orjson.dumps({"error": {"message": "x" * 10_000}})))
    assert len(message) < 600
