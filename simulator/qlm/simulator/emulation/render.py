"""Emulated render tier: the routes of `vllm launch render` (0.32) for conversations with emulated models.

A body that lacks what the gateway always sends is a 400.
"""

import secrets
from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from qlm.simulator.emulation.render_parsing import Message, message_of
from qlm.simulator.emulation.rendered import rendered
from qlm.simulator.emulation.server import JsonBytes
from qlm.simulator.emulation.vllm_requests import VllmApiError, parse_body


def render_app() -> Starlette:
    """Return the application; it serves any emulated model."""
    return Starlette(
        routes=[
            Route("/v1/chat/completions/render", _render, methods=["POST"]),
            Route("/v1/chat/completions/derender", _derender, methods=["POST"]),
            Route("/health", _health),
        ],
        exception_handlers={VllmApiError: _error_response},
    )


async def _render(request: Request) -> Response:
    return JsonBytes(rendered(await _body(request)))


async def _derender(request: Request) -> Response:
    body = await _body(request)
    try:
        return JsonBytes(_delta(body) if body.get("stream") else _whole(body))
    except (LookupError, TypeError, AttributeError) as error:
        raise VllmApiError(400, f"The request cannot be derendered: {error!r}.") from error


async def _health(request: Request) -> Response:
    return Response()


def _whole(body: Mapping[str, Any]) -> dict[str, Any]:
    choice = body["generate_response"]["choices"][0]
    message = message_of(choice["token_ids"], body["chat_request"], ended=True)
    fields: dict[str, Any] = {"role": "assistant", "content": message.content, "tool_calls": []}
    if message.tool is not None:
        fields["tool_calls"] = [_call(message.tool, message.arguments)]
    return {"choices": [{"index": 0, "message": fields, "finish_reason": choice["finish_reason"]}]}


def _delta(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the difference between the answer before and after a piece; vLLM's parsers do the same."""
    request, choice = body["chat_request"], body["generate_chunk"]["choices"][0]
    before = (body.get("stream_state") or {"output_token_ids": []})["output_token_ids"]
    after = [*before, *choice["token_ids"]]
    old = message_of(before, request, ended=False) if before else Message()
    new = message_of(after, request, ended=choice["finish_reason"] is not None)
    delta = _new_fields(old, new) | ({} if before else {"role": "assistant"})
    chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": choice["finish_reason"]}]}
    return {"chunk": chunk, "stream_state": {"output_token_ids": after}}


def _new_fields(old: Message, new: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if text := new.content[len(old.content) :]:
        fields["content"] = text
    arguments = new.arguments[len(old.arguments) :]
    if new.tool is not None and old.tool is None:
        fields["tool_calls"] = [{"index": 0, **_call(new.tool, arguments)}]
    elif arguments:
        fields["tool_calls"] = [{"index": 0, "function": {"arguments": arguments}}]
    return fields


def _call(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": secrets.token_hex(8), "type": "function", "function": function}


async def _body(request: Request) -> dict[str, Any]:
    return parse_body(await request.body(), request.headers.get("content-type", ""))


async def _error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, VllmApiError)
    return JsonBytes(error.body, error.status)
