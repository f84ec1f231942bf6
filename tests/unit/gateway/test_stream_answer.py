"""Responses that stream: their events in order, and requests that are left when a stream ends before them."""

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.group import request_class
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.request import Answer, AnswerKind, RequestMetadata
from qlm.domain.sampling import Sampling
from qlm.domain.slo import BatchSlo
from qlm.gateway.api.openai_shapes import StreamForm, StreamShape
from qlm.gateway.core.session_events import SendEvent, SendFinal
from qlm.gateway.http.connections.body import BODY, Body
from qlm.gateway.http.derendered import DerenderedSink
from qlm.gateway.http.responses import StreamAnswer
from qlm.gateway.http.sinks import StreamSink
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


@pytest.mark.parametrize("derendered", [False, True])
async def test_lost_output_leaves_a_client_that_resumes_at_its_place(derendered: bool) -> None:
    shape = StreamShape(ASKED, "flex", form=StreamForm.RESUMABLE)
    metadata = replace(ASKED, extensions=RequestExtensions(render_state=pack(RenderState({}))))
    async with tiers_at("http://127.0.0.1:9", "m") as tiers:
        deltas = Deltas(tiers[ModelId("m")].client, metadata)
        sink = DerenderedSink(shape, deltas, 42) if derendered else StreamSink(shape, 42)
        sink.final(SendFinal(0, "", None, Outcome.OUTPUT_LOST))
        assert (await sink.take()).startswith(b"event: error\nid: 42\n")


async def nothing_comes() -> Message:
    raise AssertionError("the body tells when the client leaves; nothing waits for it here")


class Slow:
    """A connection whose client reads slowly at times: what it is sent, in order."""

    def __init__(self) -> None:
        self.flow = self.transport = self
        self.chunked_encoding, self.response_complete, self.disconnected = True, False, False
        self.write_paused = False
        self.sent = b""
        self.resumed = asyncio.Event()

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        assert not self.write_paused
        self.sent += data

    async def send(self, message: Any) -> None:
        while self.write_paused:
            await self.resumed.wait()
        if body := message.get("body", b""):
            self.write(b"%x\r\n%b\r\n" % (len(body), body))

    def resume_reading(self) -> None:
        """Read on, as it does anyway."""

    def pause(self) -> None:
        self.write_paused = True
        self.resumed.clear()

    def resume(self) -> None:
        self.write_paused = False
        self.resumed.set()


@given(st.lists(st.sampled_from(["event", "pause", "resume", "turn", "comment"]), max_size=30))
def test_events_come_in_order_however_slowly_they_are_read(steps: list[str]) -> None:
    async def stream() -> None:
        slow, shape = Slow(), StreamShape(ASKED, "flex")
        sink = StreamSink(shape, 0)
        answer = StreamAnswer(sink, lambda: None, lambda: None, {})
        serving = asyncio.create_task(answer({"type": "http", BODY: Body(slow)}, nothing_comes, slow.send))
        shown = 0
        for step in steps:
            match step:
                case "event":
                    shown += 1
                    sink.event(SendEvent(shown, f"[{shown}]"))
                case "comment":
                    sink.keep_alive()
                case "pause":
                    slow.pause()
                case "resume":
                    slow.resume()
                case _:
                    await asyncio.sleep(0)
        sink.final(SendFinal(shown, "", "stop", Outcome.STOP))
        slow.resume()
        await asyncio.wait_for(serving, 5)
        assert re.findall(rb"\[(\d+)\]", slow.sent) == [b"%d" % (n + 1) for n in range(shown)]
        assert slow.sent.count(b'"role":"assistant"') == 1
        assert slow.sent.endswith(b"data: [DONE]\n\n\r\n")

    asyncio.run(stream())


async def test_a_stream_whose_client_leaves_is_left_without_a_task_that_waits_for_that() -> None:
    slow, left = Slow(), list[None]()
    body, sink = Body(slow), StreamSink(StreamShape(ASKED, "flex"), 0)
    answer = StreamAnswer(sink, lambda: left.append(None), lambda: None, {})
    before = asyncio.all_tasks()
    serving = asyncio.create_task(answer({"type": "http", BODY: body}, nothing_comes, slow.send))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() - before == {serving}
    slow.disconnected = True
    body.leave()
    await asyncio.wait_for(serving, 5)
    assert len(left) == 1
