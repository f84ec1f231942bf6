"""Parts of rendering without a render tier: its state in the metadata, the breaker, pieces of the log."""

import itertools
import random
import string

import orjson
import pytest

from qlm.domain.errors import UndecodableDataError
from qlm.domain.ids import RequestId
from qlm.gateway.api.bodies.constraints import GRAMMAR_BYTES_MAX
from qlm.gateway.api.errors import ApiError
from qlm.gateway.render.breaker import Breaker
from qlm.gateway.render.derendering import PIECE_TOKENS_MAX, piece_end, tool_call_id
from qlm.gateway.render.rendering import read_rendered
from qlm.gateway.render.state import RenderState, pack, unpack

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def test_a_state_survives_its_text() -> None:
    state = RenderState({"tools": [TOOL], "tool_choice": "required"}, (3, 1, 2))
    read = unpack(pack(state))
    assert read.prompt_ids == (3, 1, 2)
    assert read.chat_request == {**state.chat_request, "messages": [{"role": "user", "content": ""}]}


def test_many_tools_fit_and_too_many_are_refused_by_name() -> None:
    chance = random.Random(1)

    def described(count: int) -> RenderState:
        words = ["".join(chance.choices(string.ascii_lowercase, k=6)) for _ in range(count)]
        return RenderState({"tools": [{**TOOL, "description": " ".join(words)}]})

    assert unpack(pack(described(3000)))
    with pytest.raises(ApiError) as raised:
        pack(described(30_000))
    assert (raised.value.status, raised.value.param) == (400, "tools")


@pytest.mark.parametrize("text", ["", "x", "no base85 \x00", pack(RenderState({}))[:-3]])
def test_a_damaged_state_is_one_clear_error(text: str) -> None:
    with pytest.raises(UndecodableDataError):
        unpack(text)


def test_pieces_cover_the_log_and_are_few() -> None:
    ends = [0]
    while ends[-1] < 4096:
        ends.append(piece_end(ends[-1]))
    sizes = [end - start for start, end in itertools.pairwise(ends)]
    assert sizes[0] == 1, "the first token is shown at once"
    assert max(size for end, size in zip(ends, sizes, strict=False) if end < 1024) == PIECE_TOKENS_MAX
    assert sizes == sorted(sizes)
    assert len(ends) < 250


def test_pieces_of_a_long_answer_are_few_and_read_it_in_proportion_to_its_length() -> None:
    ends = [0]
    while ends[-1] < 65_536:
        ends.append(piece_end(ends[-1]))
    assert len(ends) < 450
    assert sum(ends) < 100 * ends[-1], "each call reads all tokens before its piece"


def test_ids_of_tool_calls_depend_on_request_and_index_alone() -> None:
    a, b = RequestId("req-a"), RequestId("req-b")
    assert tool_call_id(a, 0) == tool_call_id(a, 0)
    assert len({tool_call_id(a, 0), tool_call_id(a, 1), tool_call_id(b, 0)}) == 3
    assert "req-a" not in tool_call_id(a, 0), "the id of a request is what protects its answer"


class Clock:
    now = 0

    def now_ns(self) -> int:
        return self.now


def is_closed(breaker: Breaker) -> bool:
    return not breaker.is_open


def test_the_breaker_opens_after_failures_in_a_row_and_again_after_one_more() -> None:
    clock = Clock()
    breaker = Breaker(clock, failures_max=2, pause_ns=10)
    breaker.failed()
    breaker.answered()
    breaker.failed()
    assert is_closed(breaker)
    breaker.failed()
    assert not is_closed(breaker)
    clock.now = 10
    assert is_closed(breaker)
    breaker.failed()
    assert not is_closed(breaker)
    clock.now = 20
    breaker.answered()
    breaker.failed()
    assert is_closed(breaker)


def rendered(**constraint: object) -> dict[str, object]:
    return {"token_ids": [1, 2], "sampling_params": {"structured_outputs": constraint}}


@pytest.mark.parametrize("schema", [{}, {"type": "object"}])
def test_an_empty_schema_is_a_constraint_too(schema: dict[str, object]) -> None:
    given = rendered(json=schema, regex=None, disable_any_whitespace=False, _backend="xgrammar")
    assert read_rendered(given) == ((1, 2), orjson.dumps({"structured_outputs": {"json": schema}}).decode())


def test_a_large_grammar_is_refused_by_name() -> None:
    with pytest.raises(ApiError) as raised:
        read_rendered(rendered(json={"description": "x" * GRAMMAR_BYTES_MAX}))
    assert (raised.value.status, raised.value.param) == (400, "response_format")
