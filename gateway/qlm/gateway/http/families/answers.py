"""Several answers to one call: whole as choices of one object, or interleaved in one stream."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from starlette.responses import Response

from qlm.domain.errors import QlmError
from qlm.domain.request import RequestMetadata
from qlm.domain.shell.tasks import end_tasks
from qlm.gateway.api.bodies.parts import StreamOptions
from qlm.gateway.api.errors import ApiError, from_outcome, from_qlm
from qlm.gateway.api.event_shape import FamilyEnd
from qlm.gateway.api.fields.openai import ChatCompletion, TextCompletion
from qlm.gateway.api.lateness import lateness_headers
from qlm.gateway.api.objective import tier_of
from qlm.gateway.api.openai_shapes import StreamForm, StreamShape, family_usage
from qlm.gateway.api.schema import Body
from qlm.gateway.core.session import Mode
from qlm.gateway.core.session_events import SendFinal
from qlm.gateway.http.derendered import answer_of, sink_of
from qlm.gateway.http.responses import Json, StreamAnswer, WholeAnswer, error_answer
from qlm.gateway.http.sinks import EventSource, WholeSink, Write
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.intake import Prepared

Answers = Sequence[tuple[RequestMetadata, SendFinal]]


async def stream_family(
    gateway: Gateway, body: Body, members: Sequence[Prepared], form: StreamForm
) -> StreamAnswer:
    """Queue a family, and stream its answers as they come."""
    options, family = body.stream_options or StreamOptions(), FamilyEnd()
    shapes = [
        StreamShape(
            each.metadata,
            tier_of(each.metadata.slo, gateway.limits),
            fingerprint=gateway.models.fingerprint(each.metadata.answers_as),
            form=form,
            include_usage=options.include_usage,
            continuous_usage=options.continuous_usage_stats,
            family=family,
        )
        for each in members
    ]
    sinks = [
        sink_of(gateway, each.metadata, shape, 0, repeatable=False)
        for each, shape in zip(members, shapes, strict=True)
    ]
    subscriptions = await gateway.families.accept(members, sinks, Mode.STREAM)
    leave = partial(gateway.families.leave, subscriptions)
    source = InterleavedSource(sinks, shapes, family, partial(leave, for_good=True))
    open_streams = gateway.metrics.open_streams
    open_streams.inc()
    return StreamAnswer(source, leave, open_streams.dec, {"x-request-id": members[0].metadata.id})


async def whole_family(gateway: Gateway, members: Sequence[Prepared]) -> WholeAnswer:
    """Queue a family, and answer with all choices at once."""
    sinks = [WholeSink() for _ in members]
    subscriptions = await gateway.families.accept(members, sinks, Mode.WHOLE)
    leave = partial(gateway.families.leave, subscriptions)
    family = WholeFamily(sinks, partial(leave, for_good=True))
    render = partial(_render, gateway, [each.metadata for each in members], family)
    return WholeAnswer(family, leave, {"x-request-id": members[0].metadata.id}, render)


async def family_object(gateway: Gateway, answers: Answers) -> ChatCompletion | TextCompletion:
    """Return the object with all choices of a family that ended well.

    Raises:
        ApiError: The render tier of its model fails, is away, or is not known here.
    """
    made = [await answer_of(gateway, *each) for each in answers]
    if len(made) == 1:
        return made[0]
    choices = [choice for each in made for choice in each["choices"]]
    joined = {**made[0], "choices": choices, "usage": family_usage(answers)}
    return cast("ChatCompletion | TextCompletion", joined)


async def _render(
    gateway: Gateway, members: Sequence[RequestMetadata], family: "WholeFamily", last: SendFinal
) -> Response:
    if not last.outcome.ok:
        return error_answer(from_outcome(last.outcome, last.detail))
    try:
        made = await family_object(gateway, list(zip(members, family.finals, strict=True)))
    except ApiError as error:
        return error_answer(error)
    except QlmError as error:
        return error_answer(from_qlm(error))
    late = max(family.finals, key=lambda each: each.attainment.late_by_s or 0.0)
    return Json(made, lateness_headers(late.attainment))


class WholeFamily:
    """Waits for all answers; the first that ends badly ends the others.

    Attributes:
        finals: Their ends, in order, once all have ended well.
    """

    def __init__(self, sinks: Sequence[WholeSink], end_others: Callable[[], None]) -> None:
        self.finals: list[SendFinal] = []
        self._sinks = sinks
        self._end_others = end_others

    def close(self) -> None:
        """Stop the response: the client has disconnected."""
        for sink in self._sinks:
            sink.close()

    async def wait(self) -> SendFinal | ApiError | None:
        """Wait for all answers; return the last one's end, or that of the first that ended badly."""
        waits = [asyncio.ensure_future(each.wait()) for each in self._sinks]
        try:
            for coming in asyncio.as_completed(waits):
                end = await coming
                if not isinstance(end, SendFinal) or not end.outcome.ok:
                    if isinstance(end, SendFinal):
                        self._end_others()
                    return end
        finally:
            await end_tasks(waits)
        ends = [each.result() for each in waits]
        self.finals = [each for each in ends if isinstance(each, SendFinal)]
        return self.finals[-1]


class InterleavedSource:
    """The bytes of several answers, as they come, with one end.

    Attributes:
        interrupted: As of `EventSource`.
        given_up: As of `EventSource`.
        write: As of `EventSource`; not used.
    """

    def __init__(
        self,
        sources: Sequence[EventSource],
        shapes: Sequence[StreamShape],
        family: FamilyEnd,
        end_others: Callable[[], None],
    ) -> None:
        """Begin a stream.

        Args:
            sources: The streams of the answers.
            shapes: Those of the answers, in the order of their numbers.
            family: Where they note their ends.
            end_others: Cancels the answers that go on after one has failed.
        """
        self._sources = sources
        self._shapes = shapes
        self._family = family
        self._end_others = end_others
        self._takes: dict[asyncio.Task[bytes], EventSource] = {}
        self._finished: list[EventSource] = []
        self._begun = False
        self._opened = False
        self._over = False
        self.write: Write | None = None

    @property
    def ended(self) -> bool:
        """True if nothing comes after the bytes taken so far."""
        return self._over

    @property
    def interrupted(self) -> ApiError | None:
        """Error of a gateway that stops, for a stream that has not begun."""
        return next((each.interrupted for each in self._sources if each.interrupted is not None), None)

    @property
    def given_up(self) -> bool:
        """The stream has ended with an error before its requests did."""
        return any(each.given_up for each in self._sources)

    def close(self) -> None:
        """End the stream after the buffered bytes."""
        for source in self._sources:
            source.close()

    async def take(self) -> bytes:
        """Wait for bytes of any answer and return them; empty at the end of the stream."""
        if not self._begun:
            self._begun = True
            self._start(self._sources)
        data = b""
        while self._takes and not data:
            data = await self._next()
        if data and not self._opened and self._family.failed is None:
            # In the order of their numbers, as in vLLM: the helper for streams of OpenAI's SDK needs that.
            self._opened = True
            data = b"".join([each.opening() for each in self._shapes]) + data
        if self._failed_source in self._finished and not self._over:
            self._over = True
            self._end_others()
            await self._stop()
        elif not self._takes and not self._over:
            self._over = True
            if len(self._family.answers) == len(self._sources):
                data += self._closing()
        return data

    def _closing(self) -> bytes:
        answers = sorted(self._family.answers, key=lambda each: each[0].extensions.choice or 0)
        return self._shapes[0].closing(sum(final.offset for _, final in answers), family_usage(answers))

    async def _next(self) -> bytes:
        try:
            done, _ = await asyncio.wait(self._takes, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._stop()
            raise
        taken = [(self._takes.pop(task), task.result()) for task in done]
        # The bytes of the answer that ends the stream come last.
        taken.sort(key=lambda each: each[0] is self._failed_source)
        for source, data in taken:
            if source.ended or not data:
                self._finished.append(source)
            else:
                self._start([source])
        return b"".join([data for _, data in taken])

    @property
    def _failed_source(self) -> EventSource | None:
        """The answer that has ended the stream."""
        return None if self._family.failed is None else self._sources[self._family.failed]

    def _start(self, sources: Sequence[EventSource]) -> None:
        for each in sources:
            self._takes[asyncio.ensure_future(each.take())] = each

    async def _stop(self) -> None:
        takes = list(self._takes)
        self._takes.clear()
        await end_tasks(takes)
