"""Streams that end before their requests: the requests are left, or they would run on for no client."""

import asyncio
from dataclasses import replace
from typing import Any

from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.group import request_class
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.request import Answer, AnswerKind, RequestMetadata
from qlm.domain.sampling import Sampling
from qlm.domain.slo import BatchSlo
from qlm.gateway.api.openai_shapes import StreamShape
from qlm.gateway.core.session_events import SendEvent
from qlm.gateway.http.derendered import DerenderedSink
from qlm.gateway.http.responses import StreamAnswer
from qlm.gateway.render.derendering import Deltas
from qlm.gateway.render.state import RenderState, pack
from support.rendering import tiers_at

ASKED = RequestMetadata(
    id=RequestId("r"),
    cls=request_class(ModelId("m"), BatchSlo(), 0),
    tenant="t",
    slo=BatchSlo(),
    arrival_ns=0,
    prompt_tokens=5,
    sampling=Sampling(max_tokens=10),
    answer=Answer(kind=AnswerKind.CHAT),
)


async def test_a_request_whose_stream_the_render_tier_fails_is_left() -> None:
    metadata = replace(ASKED, extensions=RequestExtensions(render_state=pack(RenderState({}))))
    sent, left = list[bytes](), list[None]()

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async with tiers_at("http://127.0.0.1:9", "m") as tiers:
        deltas = Deltas(tiers[ModelId("m")].client, metadata)
        sink = DerenderedSink(StreamShape(metadata, "flex"), deltas, 0, patience_s=0)
        sink.event(SendEvent(1, "", (65,)))
        answer = StreamAnswer(sink, lambda: left.append(None), lambda: None, {})
        await answer({"type": "http"}, receive, send)
    assert b"render_unavailable" in b"".join(sent)
    assert len(left) == 1
