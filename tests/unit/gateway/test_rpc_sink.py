"""What a gRPC stream gathers while its client does not read."""

import asyncio
from typing import Any

import pytest

from qlm.domain.group import request_class
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.request import Answer, AnswerKind, RequestMetadata
from qlm.domain.sampling import Sampling
from qlm.domain.slo import BatchSlo
from qlm.gateway.api.errors import unavailable
from qlm.gateway.core.session_events import SendEvent, SendFinal
from qlm.gateway.rpc.sink import RpcSink
from qlm.gateway.rpc.v1 import qlm_pb2 as pb

METADATA = RequestMetadata(
    id=RequestId("r"),
    cls=request_class(ModelId("m"), BatchSlo(), 0),
    tenant="t",
    slo=BatchSlo(),
    arrival_ns=0,
    prompt_tokens=5,
    sampling=Sampling(max_tokens=100),
    answer=Answer(kind=AnswerKind.COMPLETION),
)


async def everything(sink: RpcSink) -> list[pb.GenerateResponse]:
    taken = []
    while (message := await sink.take()) is not None:
        taken.append(message)
    return taken


async def test_a_client_that_reads_slowly_gets_what_is_new_in_one_delta() -> None:
    sink = RpcSink(METADATA)
    sink.event(SendEvent(2, "ab", (97, 98)))
    assert (await sink.take()) == pb.GenerateResponse(delta=pb.Delta(offset=2, text="ab", token_ids=(97, 98)))
    sink.event(SendEvent(3, "c", (99,)))
    sink.event(SendEvent(4, "d", (100,)))
    sink.final(SendFinal(6, "e", "stop", Outcome.STOP, token_ids=(101, 256)))
    delta, ended = await everything(sink)
    assert delta.delta == pb.Delta(offset=6, text="cde", token_ids=(99, 100, 101, 256))
    usage = pb.Usage(prompt_tokens=5, completion_tokens=6, total_tokens=11)
    assert ended.ended == pb.Ended(outcome="stop", finish_reason="stop", usage=usage)
    assert sink.error is None


async def test_a_message_is_made_when_it_is_taken_whatever_a_slow_reader_has_let_gather(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def delta(**fields: Any) -> pb.Delta:
        made.append(fields["offset"])
        return Delta(**fields)

    Delta = pb.Delta
    monkeypatch.setattr(pb, "Delta", delta)
    sink = RpcSink(METADATA)
    for offset in range(1, 1001):
        sink.event(SendEvent(offset, "a", (97,)))
    assert made == []
    assert await sink.take() == pb.GenerateResponse(
        delta=Delta(offset=1000, text="a" * 1000, token_ids=[97] * 1000)
    )
    assert made == [1000]


async def test_an_end_without_news_is_no_delta() -> None:
    sink = RpcSink(METADATA)
    sink.final(SendFinal(0, "", None, Outcome.FAILED, "it burns"))
    (ended,) = await everything(sink)
    assert ended.ended.outcome == "failed"
    assert sink.error is not None and "it burns" in sink.error.message


async def test_who_waits_hears_that_a_stream_is_broken_off_but_not_after_its_end() -> None:
    sink = RpcSink(METADATA)
    waiting = asyncio.create_task(sink.take())
    await asyncio.sleep(0)
    stopping = unavailable("stopping", "gateway_stopping")
    sink.interrupt(stopping)
    assert await waiting is None
    assert sink.error is stopping
    other = RpcSink(METADATA)
    other.final(SendFinal(0, "", "stop", Outcome.STOP))
    other.interrupt(stopping)
    assert other.error is None
