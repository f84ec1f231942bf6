"""docs/reference/http.md, from the routes, the types of their bodies and answers, and the errors."""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from pydantic import BaseModel

from qlm.gateway.api.bodies.constraints import StructuredOutputs
from qlm.gateway.api.bodies.content_parts import (
    AudioData,
    AudioUrlPart,
    ImagePart,
    InputAudioPart,
    MediaAddress,
    TextPart,
    VideoPart,
)
from qlm.gateway.api.bodies.files import Lifetime
from qlm.gateway.api.bodies.parts import SloBody, StreamOptions, TaskBody
from qlm.gateway.api.errors import retry_headers, shown
from qlm.gateway.api.fields.openai import ErrorFields
from qlm.gateway.api.lateness import LATE_MS, MET
from qlm.gateway.api.messages import Message
from qlm.gateway.api.messages_api import body as messages_api
from qlm.gateway.api.neutral_fields import CHAT, COMPLETION
from qlm.gateway.api.rendered_fields import (
    ResponseFormat,
    Tool,
    ToolCall,
    ToolDefinition,
    ToolFunction,
)
from qlm.gateway.api.responses_api.body import ReasoningOptions, TextFormat, TextOptions
from qlm.gateway.api.responses_api.tools import FunctionTool, NamespaceTool, WebSearchTool
from qlm.gateway.api.schema import ChatBody, CompletionBody
from qlm.gateway.core.connection_limits import Breach, ConnectionLimits
from qlm.gateway.http.connections.refusals import refusal
from qlm.gateway.http.document.accepts import accepted_bodies
from scripts.reference_pages.errors import error_rows
from scripts.reference_pages.fields import HEAD, rows, summary
from scripts.reference_pages.http_routes import Route, route_part, routes
from scripts.reference_pages.http_shapes import CLIENT_TITLES, ShapeParts, client_places
from scripts.reference_pages.markdown import anchor, page, table

_INTRODUCTION: Final = """\
The routes of the gateway with their inputs and answers: those for clients on port 8000, those for \
operators (`/admin/v1` and `/metrics`) on port 8090. [http-api.md](../http-api.md) explains them: \
objectives, streams, retries. The answers to operators are on [a page of their own](http-admin.md). The \
examples were recorded with emulated engines."""

_ALL: Final = """\
Every route may also answer 500 `internal_error`: the gateway failed. Its log has the cause, once for \
each kind of failure; `qlm_faults_total` counts all. \
An unknown path is 404 `not_found`, one of another kind of model (`/v1/embeddings`, `/rerank`, ...) 404 \
`endpoint_not_supported`, another method 405 `method_not_allowed`. Bodies are JSON, UTF-8, sent \
as `application/json` (else 415 `unsupported_media_type`). A web page is refused with 403 \
`origin_not_allowed` unless its origin is in `http.allowed_origins`; a name in the header Host that the \
listener does not have, with 421 `host_not_allowed`. Routes for operators may answer 401 \
`admin_token_required`, and 403 `no_admin_token` where a listener beyond loopback has no token. With \
`http.api_keys: required`, every route for clients but those of health needs an API key: without a good one \
it is 401 `invalid_api_key`, with one for operators alone 403 `missing_scope`, and 503 `store_unavailable` \
when keys cannot be read. On the port \
for clients, they are 410 `moved_to_admin` in this version; the message names the right address. \
What breaks a limit of \
[connections](configuration.md#connections) is 400, 408, 414, 431 or 503 by its code below. \
Unknown headers and query parameters are ignored."""

_HEADINGS: Final[Mapping[type[BaseModel], str]] = {
    StreamOptions: "`stream_options`",
    SloBody: "`slo`",
    TaskBody: "`slo.task`",
    Message: "`messages[]`",
    TextPart: "`messages[].content[]` of type `text`",
    ImagePart: "`messages[].content[]` of type `image_url`",
    AudioUrlPart: "`messages[].content[]` of type `audio_url`",
    VideoPart: "`messages[].content[]` of type `video_url`",
    InputAudioPart: "`messages[].content[]` of type `input_audio`",
    MediaAddress: "`image_url`, `audio_url` and `video_url` of a part",
    AudioData: "`input_audio` of a part",
    ToolCall: "`messages[].tool_calls[]`",
    ToolFunction: "`messages[].tool_calls[].function`",
    Tool: "`tools[]`",
    ToolDefinition: "`tools[].function`",
    ResponseFormat: "`response_format`",
    StructuredOutputs: "`structured_outputs`",
    Lifetime: "`output_expires_after`",
    FunctionTool: "`response.tools[]` of type `function`",
    NamespaceTool: "`response.tools[]` of type `namespace`",
    WebSearchTool: "`response.tools[]` of type `web_search`",
    TextOptions: "`text`",
    TextFormat: "`text.format`",
    ReasoningOptions: "`reasoning`",
    messages_api.MessagesTool: "`message.tools[]`",
    messages_api.MessagesToolChoice: "`message.tool_choice`",
    messages_api.Thinking: "`thinking`",
    messages_api.OutputConfig: "`output_config`",
    messages_api.OutputFormat: "`output_config.format`",
    messages_api.MessagesMetadata: "`metadata`",
}

_BODY: Final = """\
A JSON object of at most `limits.body_bytes_max` bytes, with the fields of [both](#fields-of-both), and"""

_OWN_BODY: Final = "A JSON object of at most `limits.body_bytes_max` bytes with these fields."

_INNER: Final[Mapping[str, Collection[type[BaseModel]]]] = {
    "/v1/batches": (Lifetime,),
    "/v1/responses": (FunctionTool, NamespaceTool, WebSearchTool, TextOptions, TextFormat, ReasoningOptions),
    "/v1/messages": (
        *(messages_api.MessagesTool, messages_api.MessagesToolChoice, messages_api.Thinking),
        *(messages_api.OutputConfig, messages_api.OutputFormat, messages_api.MessagesMetadata),
    ),
}
"""Objects inside the bodies of routes whose fields no other route has."""

_STREAMS: Final = """\
With `"stream": true` the answer is a list of server-sent events: `data:` with an object \
([chat](#chat-event), [text](#text-event)); the last one is `data: [DONE]`. A request that ends badly after \
its stream began ends with `event: error`, whose data is an [error](#errors). While nothing comes, comments \
(`: keep-alive`) do. The last event with text, and the usage, have a field `qlm`: whether the request met \
its objective, and by how much it was late. With `x-qlm-stream: resumable`, each event has an `id:` with the \
output tokens so far; `x-qlm-stream: plain` leaves out the comments."""

_NEUTRAL: Final = """\
Clients send these fields of features that QLM does not have. They are accepted as `null` and at the \
values below; any other value is refused with `unsupported_value`, and any field that is on no list with \
`unknown_parameter`."""

_ERRORS: Final = """\
An error is an object with one field, `error`; `…` stands for what depends on the request. The same codes \
name the bad end of a request in a stream's `error` event. 429 and 503 say in `Retry-After` when to come \
back, and `x-should-retry` whether to."""

_PAGES: Final = "all answers to pages of `http.allowed_origins`"
HEADER_ROWS: Final = (
    ("x-request-id", "all answers", "The id of the request if it has one, else one of this answer alone."),
    (MET, "whole answers", "`true` or `false`: whether the request met its objective, if it has one."),
    (LATE_MS, "whole answers", "By how many milliseconds it was late; 0 if it was not."),
    ("request-id", "`/v1/messages`", "The id of the request, for Anthropic's clients."),
    ("location", "202 of a request", "Where the request can be looked up."),
    ("preference-applied", "202 of a request", "`respond-async`"),
    ("retry-after", "429, 503", "Whole seconds after which to come back, at least 1."),
    ("retry-after-ms", "429, 503", "The same in milliseconds."),
    ("x-should-retry", "429, 503, bad ends of requests", "`true` or `false`: whether coming back can help."),
    ("x-llm-d-request-dropped-reason", "429, 503", "The `code` of the error."),
    ("access-control-allow-origin", _PAGES, "The origin: the page may read the answer."),
    ("access-control-expose-headers", _PAGES, "`*`: the page may read its headers."),
    ("vary", _PAGES, "`Origin`"),
    ("content-security-policy", "/docs", "The page loads nothing from elsewhere."),
    ("x-content-type-options", "/docs", "`nosniff`"),
    ("www-authenticate", "401", "`Bearer`"),
    ("connection", "413, limits of connections", "`close`: the connection ends."),
)
"""Headers of answers: which they are of, and their meaning."""

ANSWER_HEADERS: Final = frozenset(name for name, *_ in HEADER_ROWS)
"""Headers of answers that the page describes."""

OF_CONNECTIONS: Final = {breach: str(refusal(breach, ConnectionLimits()).status) for breach in Breach}
"""Status of each code with which connections are refused."""

OF_EVERY_ROUTE: Final = frozenset(
    {
        ("401", "admin_token_required"),
        ("401", "invalid_api_key"),
        ("403", "missing_scope"),
        ("403", "no_admin_token"),
        ("410", "moved_to_admin"),
        ("403", "origin_not_allowed"),
        ("415", "unsupported_media_type"),
        ("421", "host_not_allowed"),
        ("404", "endpoint_not_supported"),
        ("500", "internal_error"),
        *((status, str(code)) for code, status in OF_CONNECTIONS.items()),
    }
)
"""Errors that every route may answer with, by status and code."""

OF_GRPC: Final = frozenset({("400", "invalid_message")})
"""Errors of the gRPC API alone."""

assert retry_headers(1.0).keys() <= ANSWER_HEADERS


def http_page() -> str:
    """Return the page."""
    all_routes = routes()
    own = [route for route in all_routes if not route.of_operators]
    return page(
        "HTTP reference",
        _INTRODUCTION,
        "## Routes",
        table(("route", "answer", "status"), map(_row, all_routes)),
        _ALL,
        "## Headers of answers",
        table(("header", "of", "meaning"), ((f"`{name}`", of, said) for name, of, said in HEADER_ROWS)),
        *_parts(own),
        "## Errors",
        _ERRORS,
        *ShapeParts(CLIENT_TITLES, client_places()).of(ErrorFields),
        table(("status", "code", "type", "message"), _errors(all_routes)),
    )


def _row(route: Route) -> tuple[str, str, str]:
    on = "http-admin.md" if route.of_operators else ""
    name = f"[`{route.name}{route.query}`]({on}#{anchor(route.name)})"
    return name, route.about, ", ".join(route.statuses)


def _parts(own: list[Route]) -> Iterator[str]:
    places, bodies = client_places(), dict(_bodies())
    shapes = ShapeParts(CLIENT_TITLES, places)
    for route in own:
        yield from route_part(route, places, bodies.get(route.path, _declared(route)))
        for each in (each for answers in route.answers.values() for each in answers):
            yield from shapes.of(each)
        if route.path == "/v1/completions":
            yield "## Streams"
            yield _STREAMS
            yield from _fields()
        if route.method == "POST":
            yield from _inner_fields(_INNER.get(route.path, ()))


def _bodies() -> Iterator[tuple[str, str]]:
    for path, body in (("/v1/chat/completions", ChatBody), ("/v1/completions", CompletionBody)):
        own = [name for name in body.model_fields if name in body.__annotations__]
        yield path, f"{_BODY}\n\n{table(HEAD, rows(body, _link, own))}"


def _own_body(body: type[BaseModel], neutral: Mapping[str, tuple[object, ...]]) -> str:
    accepted = (
        f"`{name}` ({' or '.join(f'`{shown(each)}`' for each in values)})" if values else f"`{name}`"
        for name, values in sorted(neutral.items())
    )
    without = f"Accepted as `null` and at the values named, without effect: {', '.join(accepted)}."
    described = f"{summary(body)} {_OWN_BODY}\n\n{table(HEAD, rows(body, _link))}"
    return f"{described}\n\n{without}" if neutral else described


def _declared(route: Route) -> str:
    """Describe the bodies that a handler declares."""
    return "\n\n".join(_own_body(each.model, each.neutral) for each in accepted_bodies(route.handler))


def _fields() -> Iterator[str]:
    yield "## Fields of both"
    yield table(
        HEAD, rows(ChatBody, _link, sorted(set(ChatBody.model_fields) - set(ChatBody.__annotations__)))
    )
    yield from _inner_fields(set(_HEADINGS) - {each for inner in _INNER.values() for each in inner})
    yield "## Fields without effect"
    yield _NEUTRAL
    yield table(("field", "completions", "chat"), _neutral_rows())


def _inner_fields(models: Collection[type[BaseModel]]) -> Iterator[str]:
    for model, heading in _HEADINGS.items():
        if model in models:
            yield f"## {heading}"
            yield summary(model)
            yield table(HEAD, rows(model, _link))


def _errors(all_routes: list[Route]) -> Iterator[tuple[str, ...]]:
    """Describe the errors that a route may answer with, and that of all."""
    codes = {(status, code) for route in all_routes for status, code, *_ in route.errors}
    for row in error_rows():
        if (row[0], row[1].strip("`")) in codes | OF_EVERY_ROUTE:
            yield row


def _link(model: type[BaseModel]) -> str:
    heading = _HEADINGS[model]
    shown = heading.rpartition(" of type ")[2].strip("`")
    return f"[{shown.rpartition('.')[2].removesuffix('[]')}](#{anchor(heading)})"


def _neutral_rows() -> Iterator[tuple[str, str, str]]:
    for name in sorted({*COMPLETION, *CHAT}):
        cells = (
            "unknown" if name not in known else ", ".join(f"`{shown(each)}`" for each in known[name])
            for known in (COMPLETION, CHAT)
        )
        yield (f"`{name}`", *cells)  # type: ignore[misc]
