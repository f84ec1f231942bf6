"""HTTP server with vLLM's API for an emulated engine."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import orjson
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from qlm.domain.errors import InvalidValueError
from qlm.domain.ports.tracing import TRACE_HEADER, Tracer
from qlm.domain.shell.tasks import end_tasks
from qlm.simulator.emulation.emulator import Emulator, EmulatorClosedError, Hang, TokenStream
from qlm.simulator.emulation.media import check_features
from qlm.simulator.emulation.rendered import rendered
from qlm.simulator.emulation.tracing import EngineSpan, begin_request
from qlm.simulator.emulation.vllm_answers import (
    DONE,
    ENGINE_DEAD,
    AnswerShape,
    CompletionAnswer,
    GenerateAnswer,
    event,
)
from qlm.simulator.emulation.vllm_metrics import metrics_text
from qlm.simulator.emulation.vllm_requests import (
    Parse,
    VllmApiError,
    VllmRequest,
    parse_abort,
    parse_body,
    parse_completion,
    parse_generate,
    parse_sleep,
)

GARBAGE: Final = b'data: {"choices": [{"token_ids": [1, "\xff", -3\n\n'
_LOOPBACK: Final = ("127.0.0.1", "::1")
_SSE_HEADERS: Final = [(b"content-type", b"text/event-stream; charset=utf-8")]

Endpoint = Callable[[Request], Awaitable[Response]]


class JsonBytes(Response):
    """JSON response, encoded by orjson."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Encode the content."""
        return orjson.dumps(content)


class _EventStream(Response):
    """Streams tokens as server-sent events; a disconnect of the client aborts its request."""

    # It sends through ASGI directly: Starlette's streaming response costs a task group per request.

    def __init__(
        self,
        emulator: Emulator,
        stream: TokenStream,
        wanted: VllmRequest,
        shape: AnswerShape,
        span: EngineSpan | None,
    ) -> None:
        super().__init__()
        self._emulator = emulator
        self._stream = stream
        self._asked = wanted
        self._shape = shape
        self._span = span

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.ensure_future(_abort_on_disconnect(receive, self._emulator, self._stream))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS})
            ended = False
            while not ended and not watch.done():
                body, ended = await self._next()
                await send({"type": "http.response.body", "body": body, "more_body": not ended})
        finally:
            await end_tasks([watch])
            self._emulator.abort_stream(self._stream)
            if self._span is not None:
                self._span.end()

    async def _next(self) -> tuple[bytes, bool]:
        try:
            emissions = await self._stream.get()
            await self._emulator.heard.wait()
        except EmulatorClosedError:
            return event(ENGINE_DEAD) + DONE, True
        if self._span is not None:
            for emission in emissions:
                self._span.emitted(emission)
        if self._emulator.hang is Hang.GARBAGE:
            return GARBAGE, False
        body = b"".join([self._shape.chunk(emission) for emission in emissions])
        if emissions[-1].finish is None:
            return body, False
        return body + (self._shape.usage_chunk() if self._asked.usage else b"") + DONE, True


class EmulatedServer:
    """Endpoints of the emulated engine; `app` is the ASGI application."""

    def __init__(
        self,
        emulator: Emulator,
        model: str,
        tracer: Tracer | None = None,
        *,
        adapters: Sequence[str] = (),
        async_scheduling: bool | None = None,
        request_s: float = 0.0,
    ) -> None:
        """Serve one model and its adapters.

        Args:
            emulator: The engine; the caller runs its `run`.
            model: Model name for clients.
            tracer: Records spans of requests; None for none.
            adapters: Names of its LoRA adapters.
            async_scheduling: The engine's setting, for /server_info; None if that does not show it.
            request_s: Time from the arrival of a request to the scheduler (`Profile.request_ms`).
        """
        self._emulator = emulator
        self._async_scheduling = async_scheduling
        self._request_s = request_s
        self._tracer = tracer
        self._model = model
        self._names = (model, *adapters)
        self._started_s = int(time.time())
        self.app = Starlette(
            routes=[
                Route("/v1/completions", self._answering(parse_completion), methods=["POST"]),
                Route("/inference/v1/generate", self._answering(parse_generate), methods=["POST"]),
                Route("/v1/chat/completions/render", self._render, methods=["POST"]),
                Route("/inference/v1/abort_requests", self._abort, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/version", self._version),
                Route("/server_info", self._server_info),
                Route("/sleep", self._sleep, methods=["POST"]),
                Route("/wake_up", self._wake, methods=["POST"]),
                Route("/collective_rpc", self._rpc, methods=["POST"]),
                Route("/is_sleeping", self._is_sleeping),
                Route("/emulation/hang", self._hang, methods=["POST"]),
            ],
            exception_handlers={
                VllmApiError: _error_response,
                InvalidValueError: _error_response,
                ClientDisconnect: _client_gone,
            },
        )

    def _answering(self, parse: Parse) -> Endpoint:
        async def answer(request: Request) -> Response:
            come_s = asyncio.get_running_loop().time()
            body = parse_body(await request.body(), request.headers.get("content-type", ""))
            context_tokens = self._emulator.engine.capacity.context_tokens
            try:
                if parse is parse_generate:
                    check_features(body.get("features"), len(body.get("token_ids") or ()))
                wanted = parse(body, request.headers.get("x-request-id"), self._names, context_tokens)
            except VllmApiError as error:
                if error.late and body.get("stream"):
                    return Response(event(error.body) + DONE, media_type="text/event-stream")
                raise
            shape = self._shape(parse, wanted)
            span = None
            if self._tracer is not None:
                span = begin_request(self._tracer, wanted, request.headers.get(TRACE_HEADER, ""))
            await self._reach_scheduler(come_s)
            stream = self._emulator.submit(wanted.external_id, wanted.call)
            if wanted.stream:
                return _EventStream(self._emulator, stream, wanted, shape, span)
            return await self._whole(request, stream, shape, span)

        return answer

    async def _render(self, request: Request) -> Response:
        body = parse_body(await request.body(), request.headers.get("content-type", ""))
        return JsonBytes(rendered(body))

    async def _reach_scheduler(self, come_s: float) -> None:
        """Wait for what is left of a request's time outside of iterations."""
        left_s = come_s + self._request_s - asyncio.get_running_loop().time()
        if left_s > 0:
            await asyncio.sleep(left_s)

    def _shape(self, parse: Parse, wanted: VllmRequest) -> AnswerShape:
        model = wanted.sampling.adapter or self._model
        if parse is parse_generate:
            return GenerateAnswer(wanted=wanted, model=model)
        return CompletionAnswer(wanted=wanted, model=model, created_s=int(time.time()))

    async def _whole(
        self, request: Request, stream: TokenStream, shape: AnswerShape, span: EngineSpan | None
    ) -> Response:
        watch = asyncio.ensure_future(_abort_on_disconnect(request.receive, self._emulator, stream))
        try:
            while True:
                emissions = await stream.get()
                for emission in emissions:
                    shape.take(emission)
                    if span is not None:
                        span.emitted(emission)
                if (finish := emissions[-1].finish) is not None:
                    return JsonBytes(shape.whole(finish, emissions[-1].stop_reason, int(time.time())))
        except EmulatorClosedError:
            return JsonBytes(ENGINE_DEAD, 500)
        finally:
            await end_tasks([watch])
            if span is not None:
                span.end()

    async def _abort(self, request: Request) -> Response:
        ids = parse_abort(parse_body(await request.body(), request.headers.get("content-type", "")))
        self._emulator.abort(ids)
        return Response()

    async def _models(self, request: Request) -> Response:
        same = {"object": "model", "created": self._started_s, "owned_by": "qlm-emulate"}
        context_tokens = self._emulator.engine.capacity.context_tokens
        model = {"root": self._model, "parent": None, "max_model_len": context_tokens}
        adapter = {"parent": self._model, "max_model_len": None}
        listed = [{"id": name, **(model if name == self._model else adapter), **same} for name in self._names]
        return JsonBytes({"object": "list", "data": listed})

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _metrics(self, request: Request) -> Response:
        emulator = self._emulator
        text = metrics_text(
            emulator.engine, self._model, sleep_level=emulator.sleep_level, lag_s=emulator.lag_s
        )
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _version(self, request: Request) -> Response:
        return JsonBytes({"version": "0.32.0+qlm.emulated"})

    async def _server_info(self, request: Request) -> Response:
        """Report the settings of the scheduler; vLLM reports many more."""
        capacity = self._emulator.engine.capacity
        scheduler = {
            "max_num_batched_tokens": capacity.batched_tokens_max,
            "max_num_seqs": capacity.seqs_max,
            "async_scheduling": self._async_scheduling,
        }
        return JsonBytes({"vllm_config": {"scheduler_config": scheduler}})

    async def _sleep(self, request: Request) -> Response:
        level, keep = parse_sleep(request.query_params)
        await self._emulator.sleep(level, keep=keep)
        return JsonBytes({"status": "sleeping", "level": level})

    async def _wake(self, request: Request) -> Response:
        tags = request.query_params.getlist("tags")
        await self._emulator.wake(tags)
        return JsonBytes({"status": "awake", "tags": tags or None})

    async def _rpc(self, request: Request) -> Response:
        """Accept `reload_weights`, which a wake from level 2 needs; its time is part of the wake."""
        method = parse_body(await request.body(), request.headers.get("content-type", "")).get("method")
        if method != "reload_weights":
            raise VllmApiError(400, f"method must be reload_weights, got {method!r}", param="method")
        return JsonBytes({"results": [None]})

    async def _hang(self, request: Request) -> Response:
        """Hang in the way that the body names, for tests of what stands in front; only over loopback."""
        if request.client is None or request.client.host not in _LOOPBACK:
            raise VllmApiError(403, "Only for clients on this machine.", type="Forbidden")
        mode = parse_body(await request.body(), request.headers.get("content-type", "")).get("mode")
        if mode not in set(Hang):
            raise VllmApiError(400, f"mode must be one of {', '.join(Hang)}, got {mode!r}", param="mode")
        self._emulator.set_hang(Hang(mode))
        return JsonBytes({"mode": mode})

    async def _is_sleeping(self, request: Request) -> Response:
        return JsonBytes({"is_sleeping": self._emulator.sleep_level > 0})


async def _abort_on_disconnect(receive: Receive, emulator: Emulator, stream: TokenStream) -> None:
    """Abort the request when its client closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    emulator.abort_stream(stream)


async def _error_response(request: Request, error: Exception) -> Response:
    if isinstance(error, VllmApiError):
        return JsonBytes(error.body, error.status)
    body: dict[str, Any] = VllmApiError(400, str(error)).body
    return JsonBytes(body, 400)


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)
