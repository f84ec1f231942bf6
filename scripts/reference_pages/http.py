"""docs/reference/http.md, from the routes, the models of their bodies, and the errors in the code."""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import BaseModel

from qlm.gateway.app import _ROUTES
from qlm.gateway.errors import shown
from qlm.gateway.neutral import CHAT, COMPLETION
from qlm.gateway.schema import ChatBody, CompletionBody, Message, SloBody, StreamOptions, TextPart
from scripts.reference_pages.errors import error_rows
from scripts.reference_pages.fields import HEAD, NoMeaningError, rows, summary
from scripts.reference_pages.markdown import anchor, page, table

_INTRODUCTION: Final = """\
Routes, fields and errors of the gateway (port 8000). [http-api.md](../http-api.md) explains them: \
objectives, headers, streams, when to come back."""

_HEADINGS: Final[Mapping[type[BaseModel], str]] = {
    StreamOptions: "`stream_options`",
    SloBody: "`slo`",
    Message: "`messages[]`",
    TextPart: "`messages[].content[]`",
}

_NEUTRAL: Final = """\
Clients send these fields of features that QLM does not have. They are accepted as `null` and at the \
values below; any other value is refused with `unsupported_value`, and any field that is on no list with \
`unknown_parameter`."""

_ERRORS: Final = """\
An error is `{"error": {"message", "type", "param", "code"}}`; `…` stands for what depends on the \
request. The same codes name the bad end of a request in a stream's `error` event. An unknown path is 404 \
`not_found`, another method 405 `method_not_allowed`. 429 and 503 say in `Retry-After` when to come back, \
and `x-should-retry` whether to."""


def http_page() -> str:
    """Return the page."""
    return page(
        "HTTP reference",
        _INTRODUCTION,
        "## Routes",
        table(("route", "answer"), _routes()),
        *_bodies(),
        "## Fields without effect",
        _NEUTRAL,
        table(("field", "completions", "chat"), _neutral_rows()),
        "## Errors",
        _ERRORS,
        table(("status", "code", "type", "message"), error_rows()),
    )


def _routes() -> Iterator[tuple[str, str]]:
    for method, path, handler in _ROUTES:
        plain = path.replace(":path}", "}")
        said = " ".join((inspect.getdoc(handler) or "").partition("\n\n")[0].split())
        found = re.fullmatch(rf"Answer ({method} {re.escape(plain)}(\?[\w&=]+)?): (.+)\.", said)
        if found is None:
            name = getattr(handler, "__name__", repr(handler))
            raise NoMeaningError(
                f"the docstring of {name} does not begin with `Answer {method} {plain}: ...`"
            )
        yield f"`{found[1]}`", found[3]


def _bodies() -> Iterator[str]:
    own = {name: set(body.__annotations__) for name, body in (("chat", ChatBody), ("text", CompletionBody))}
    shared = set(ChatBody.model_fields) - own["chat"]
    yield "## `POST /v1/completions`"
    yield "The fields of [both](#fields-of-both), and"
    yield table(HEAD, rows(CompletionBody, _link, sorted(own["text"])))
    yield "## `POST /v1/chat/completions`"
    yield "The fields of [both](#fields-of-both), and"
    yield table(HEAD, rows(ChatBody, _link, sorted(own["chat"])))
    yield "## Fields of both"
    yield table(HEAD, rows(ChatBody, _link, sorted(shared)))
    for model, heading in _HEADINGS.items():
        yield f"## {heading}"
        yield summary(model)
        yield table(HEAD, rows(model, _link))


def _link(model: type[BaseModel]) -> str:
    heading = _HEADINGS[model]
    return f"[{heading.strip('`').rpartition('.')[2].removesuffix('[]')}](#{anchor(heading)})"


def _neutral_rows() -> Iterator[tuple[str, str, str]]:
    for name in sorted({*COMPLETION, *CHAT}):
        cells = (
            "unknown" if name not in known else ", ".join(f"`{shown(each)}`" for each in known[name])
            for known in (COMPLETION, CHAT)
        )
        yield (f"`{name}`", *cells)  # type: ignore[misc]
