"""docs/reference/request-fields.md: each request field of vLLM, and what QLM does with it."""

import json
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from qlm.gateway.api.bodies.content_parts import MEDIA_KINDS
from qlm.gateway.api.errors import shown
from qlm.gateway.api.messages import OTHER_MEDIA
from qlm.gateway.api.neutral_fields import CHAT, COMPLETION
from qlm.gateway.api.rendered_fields import RENDERED
from qlm.gateway.api.responses_api.body import NEUTRAL as RESPONSE
from qlm.gateway.api.responses_api.body import ResponseBody
from qlm.gateway.api.schema import ChatBody, CompletionBody
from qlm.gateway.rpc.messages import OF_HTTP_ANSWERS
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from scripts.reference_pages.fields import meanings
from scripts.reference_pages.markdown import page, table

LISTED: Final[Mapping[str, Any]] = json.loads((Path(__file__).parent / "vllm_fields.json").read_text("utf-8"))
"""Fields of vLLM's requests by route, with its version, as scripts/vllm_fields.py finds them."""

_INTRODUCTION: Final = (
    f"Every field of the requests of vLLM {LISTED['version']} to `/v1/chat/completions`, `/v1/completions` "
    "and `/v1/responses`, as `scripts/vllm_fields.py` reads them from its package, and what QLM does with "
    "it. None is ignored silently: a value that would change the answer is honoured, or refused with 400 "
    "and the name of the field. `user` is the tenant. The [HTTP reference](http.md) has types and limits. In "
    "gRPC a field has the place in the last column; `more` takes fields of the HTTP API by their names. gRPC "
    "has no responses."
)

ROUTES: Final = (
    ("chat", ChatBody, CHAT),
    ("completion", CompletionBody, COMPLETION),
    ("response", ResponseBody, RESPONSE),
)
OVER_GRPC: Final = ("chat", "completion")

_RENDERED: Final[Mapping[type[BaseModel], Collection[str]]] = {
    ChatBody: RENDERED.keys(),
    ResponseBody: {*RENDERED, "reasoning", "text"},
}
"""Fields that need the model's render tier."""


class Treatment(StrEnum):
    """What QLM does with a field, in the words of the page."""

    HONOURED = "honoured"
    RENDERED = "honoured where the model has a render tier, else refused by name"
    ACCEPTED = "accepted; it changes nothing"
    NEUTRAL = "refused by name, but for values that change nothing"
    REFUSED = "refused by name, but for `null`"


def treatment(name: str, body: type[BaseModel], neutral: Mapping[str, object]) -> Treatment:
    """Return what QLM does with a field of one route."""
    if name in body.model_fields:
        if name in _RENDERED.get(body, ()):
            return Treatment.RENDERED
        unused = meanings(body)[name].startswith("Accepted, not used")
        return Treatment.ACCEPTED if unused else Treatment.HONOURED
    return Treatment.NEUTRAL if neutral.get(name) else Treatment.REFUSED


def over_grpc(name: str, treated: Treatment) -> str:
    """Return what QLM does with a field over gRPC."""
    if name == "prompt" or name in pb.GenerateRequest.DESCRIPTOR.fields_by_name:
        return f"`{name}`"
    if name in OF_HTTP_ANSWERS:
        return "refused by name"
    return "refused by name" if treated in (Treatment.NEUTRAL, Treatment.REFUSED) else f"`more.{name}`"


def request_fields_page() -> str:
    """Return the page."""
    return page(
        "Request fields of vLLM",
        _INTRODUCTION,
        *(part for route in ROUTES for part in _section(*route)),
        *_content_parts(),
    )


def _content_parts() -> Iterator[str]:
    yield "## Content parts of messages"
    yield f"In requests to `/v1/chat/completions`, by their `type`: {OTHER_MEDIA}."
    treated = dict.fromkeys(MEDIA_KINDS, Treatment.RENDERED) | {"text": Treatment.HONOURED}
    parts = [(f"`{kind}`", treated.get(kind, "refused by name")) for kind in LISTED["parts"]]
    yield table(("type", "QLM"), parts)


def _section(route: str, body: type[BaseModel], neutral: Mapping[str, tuple[object, ...]]) -> Iterator[str]:
    path = {"chat": "chat/completions", "completion": "completions", "response": "responses"}[route]
    yield f"## POST /v1/{path}"
    rows = []
    for name in LISTED[route]:
        treated = treatment(name, body, neutral)
        words = str(treated)
        if treated is Treatment.NEUTRAL:
            words += f" ({', '.join(f'`{shown(each)}`' for each in neutral[name])})"
        rows.append((f"`{name}`", words, *((over_grpc(name, treated),) if route in OVER_GRPC else ())))
    yield table(("field", "QLM", *(("gRPC",) if route in OVER_GRPC else ())), rows)
