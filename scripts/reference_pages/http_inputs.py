"""Headers, query parameters and parts of paths in words; which route reads which is found in the code."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from qlm.domain.ports.tracing import TRACE_HEADER
from qlm.domain.request import RequestState
from qlm.domain.slo import DEADLINE_MAX_MS
from qlm.gateway.api.objective import (
    DEADLINE_HEADER,
    MS_MIN,
    P_MET_HEADER,
    P_MET_MIN_HEADER,
    PACE_HEADERS,
    TPOT_HEADERS,
    TTFT_HEADERS,
)
from qlm.gateway.api.translate import TENANT_CHARACTERS_MAX, TENANT_HEADERS
from qlm.gateway.core.limits import P_MET_MIN_MAX
from qlm.gateway.core.sdk_retries import COUNT_HEADER, TIMEOUT_HEADERS
from qlm.gateway.files.records import PAGE_MAX
from qlm.gateway.http.admin import LIST_DEFAULT, LIST_MAX, LOOKED_AT
from qlm.gateway.http.completions import STREAM_HEADER
from qlm.gateway.http.files.admin import LISTED_DEFAULT, LISTED_MAX
from qlm.gateway.http.requests import OFFSET_MAX
from qlm.gateway.http.responses_api.input_items import ITEMS_DEFAULT, ITEMS_MAX
from qlm.gateway.sessions.idempotency import KEY_CHARACTERS_MAX, KEY_HEADER
from qlm.gateway.sessions.operators.dead_letters import LETTERS_MAX
from scripts.reference_pages.fields import NoMeaningError

HEAD: Final = ("name", "in", "type", "limits", "meaning")


class Input(NamedTuple):
    """An input of a route beside its body."""

    type: str
    limits: str
    meaning: str


_MS: Final = f"{MS_MIN} to {DEADLINE_MAX_MS} (30 days)"

_PACE: Final = (
    "As `slo.tokens_per_s`, if the body has no `slo`; the first token after 1 s without a TTFT header."
)

_HEADERS: Final[Mapping[str, Input]] = {
    KEY_HEADER: Input(
        "text",
        f"1 to {KEY_CHARACTERS_MAX} characters",
        "A retry with the same key, tenant and body gets the same request, on any gateway.",
    ),
    "prefer": Input(
        "text",
        "`respond-async`; anything else is ignored",
        "Answer 202 once it is queued; the client does not wait.",
    ),
    STREAM_HEADER: Input(
        "text",
        "`resumable` or `plain`",
        "With `id:` lines, from which the stream can be resumed, or with data lines only; without the "
        "header, data lines and comments, unless `limits.resumable_streams` is set.",
    ),
    DEADLINE_HEADER: Input(
        "number", _MS, "As `slo.deadline_ms`, if the body has no `slo`; the others may come beside it."
    ),
    **{name: Input("number", _MS, "As `slo.ttft_ms`, if the body has no `slo`.") for name in TTFT_HEADERS},
    **{name: Input("number", _MS, "As `slo.tpot_ms`, if the body has no `slo`.") for name in TPOT_HEADERS},
    **{name: Input("number", "0.01 to 10000", _PACE) for name in PACE_HEADERS},
    P_MET_MIN_HEADER: Input("number", f"0 to {P_MET_MIN_MAX}", "As `slo.p_met_min`; the body wins."),
    P_MET_HEADER: Input("number", f"0 to {P_MET_MIN_MAX}", "As `slo.p_met`; the body wins."),
    **{
        name: Input(
            "text", f"at most {TENANT_CHARACTERS_MAX} characters", "The tenant; the field `user` wins."
        )
        for name in TENANT_HEADERS
    },
    TRACE_HEADER: Input(
        "text", "W3C Trace Context; else ignored", "The trace that the request's spans go on with."
    ),
    COUNT_HEADER: Input(
        "whole number",
        "0 to 9999; else ignored",
        "Tries of an SDK before this one; a retry takes up the request that ran into its timeout.",
    ),
    **{name: Input("number", "seconds; else ignored", "Timeout of an SDK.") for name in TIMEOUT_HEADERS},
    "last-event-id": Input(
        "whole number", f"0 to {OFFSET_MAX}", "As `offset`; it wins. Clients of event streams send it."
    ),
}

_HEADERS_OF: Final[Mapping[tuple[str, str], Input]] = {
    (path, "last-event-id"): Input("text", "any value", f"As `{STREAM_HEADER}: resumable`.")
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses")
}

_QUERY: Final[Mapping[str, Input]] = {
    "offset": Input(
        "whole number", f"0 to {OFFSET_MAX}", "Output tokens that the client has been shown; 0 if not given."
    ),
    "include_usage": Input(
        "text", "`true`; else ignored", "End with an event that has the token counts and no choices."
    ),
    "stream": Input("text", "`true`; else ignored", "Answer with the events of the response."),
    "starting_after": Input(
        "whole number",
        "0 to 999999999",
        "The number of the last event that the client has; none if not given.",
    ),
    "state": Input("text", " or ".join(f"`{each}`" for each in RequestState), "Only requests in this state."),
    "model": Input("text", "", "Only requests that name this model."),
    "late": Input(
        "text",
        "`true` or `false`",
        f"Only requests that missed their objective, or are late already, of the newest {LOOKED_AT}.",
    ),
    "task": Input("text", "", f"Only calls of the task of this name, of the newest {LOOKED_AT}."),
    "after": Input("text", "", "An id of the list, behind which the answer begins."),
    "order": Input("text", "`desc` or `asc`", "The newest entry first, or the oldest; `desc` if not given."),
    "tenant": Input("text", "", "Only batches of this tenant."),
    "purpose": Input("text", "", "Only files of this purpose."),
    "limit": Input(
        "whole number", f"1 to {LIST_MAX}", f"Largest number of entries; {LIST_DEFAULT} if not given."
    ),
}

_QUERY_OF: Final[Mapping[tuple[str, str], Input]] = {
    ("/v1/files", "limit"): _QUERY["limit"]._replace(limits=f"1 to {PAGE_MAX}"),
    ("/v1/batches", "limit"): _QUERY["limit"]._replace(limits=f"1 to {PAGE_MAX}"),
    ("/v1/responses/{id}/input_items", "limit"): Input(
        "whole number", f"1 to {ITEMS_MAX}", f"Largest number of items; {ITEMS_DEFAULT} if not given."
    ),
    ("/admin/v1/batches", "limit"): Input(
        "whole number", f"1 to {LISTED_MAX}", f"Largest number of batches; {LISTED_DEFAULT} if not given."
    ),
    ("/admin/v1/dead", "limit"): _QUERY["limit"]._replace(limits=f"1 to {LETTERS_MAX}"),
}

_IDS: Final[Mapping[str, Input]] = {
    "/v1/models/": Input("text", "", "The name of a model; it may have slashes."),
    "/v1/responses/": Input("text", "", "The id of a response."),
    "/v1/files/": Input("text", "", "The id of a file."),
    "/v1/batches/": Input("text", "", "The id of a batch."),
    "/v1/requests/": Input("text", "", "The id of a request: the `x-request-id` of its answer."),
    "/admin/v1/requests/": Input("text", "", "The id of a request."),
    "/admin/v1/instances/": Input("text", "", "The name of an instance."),
    "/admin/v1/batches/": Input("text", "", "The id of a batch."),
    "/admin/v1/keys/": Input("text", "", "The id of an API key."),
    "/admin/v1/dead/": Input("text", "", "The id of a letter, or of the request in it."),
}


def input_rows(path: str, headers: set[str], query: set[str]) -> Iterator[tuple[str, ...]]:
    """Describe what a route reads beside its body.

    Raises:
        NoMeaningError: Nothing is said here of a name that it reads.
    """
    if "{id" in path:
        yield ("`id`", "path", *_said(_IDS, path.partition("{")[0]))
    for name in sorted(query):
        yield (f"`{name}`", "query", *(_QUERY_OF.get((path, name)) or _said(_QUERY, name)))
    for name in (each for each in _HEADERS if each in headers):
        yield (f"`{name}`", "header", *_HEADERS_OF.get((path, name), _HEADERS[name]))
    for name in headers - set(_HEADERS):
        raise NoMeaningError(f"the header {name}, which {path} reads, is not described")


def _said(inputs: Mapping[str, Input], name: str) -> Input:
    if name not in inputs:
        raise NoMeaningError(f"{name} is not described")
    return inputs[name]
