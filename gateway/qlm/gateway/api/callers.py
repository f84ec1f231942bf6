"""Errors of callers that a listener does not accept, before their path is looked at."""

from collections.abc import Callable, Iterator, Sequence

from qlm.domain.shown import cut
from qlm.gateway.api.errors import ApiError, shown
from qlm.gateway.core.access import JSON_TYPE, AccessRules, is_type

Headers = Callable[[str], Sequence[str]]
"""Returns all values of a header, by its name in lower case."""


def caller_errors(
    headers: Headers, rules: AccessRules, *, own_page: bool = False, body_type: str = JSON_TYPE
) -> Iterator[ApiError]:
    """Yield the errors of a request: a strange Host or Origin, a body that is encoded or of another type.

    Args:
        headers: Its headers.
        rules: Callers that the listener accepts.
        own_page: Pages of the listener itself may send it: browsers name the origin of a page that loads its
            modules.
        body_type: Content type of its body, if it has one.
    """
    hosts = headers("host")
    for host in hosts:
        if not rules.accepts_host(host):
            message = f"Host is {shown(host)}; expected localhost, an address, or one of allowed_hosts"
            yield ApiError(status=421, message=message, code="host_not_allowed")
    for origin in headers("origin"):
        if own_page and len(hosts) == 1 and rules.accepts_own_page(origin, hosts[0]):
            continue
        if not rules.accepts_origin(origin):
            message = f"Origin is {cut(origin)!r}; expected one of http.allowed_origins, or no web page"
            yield ApiError(status=403, message=message, code="origin_not_allowed")
    if not _has_body(headers):
        return
    encoding = ", ".join(headers("content-encoding"))
    if encoding.strip().lower() not in ("", "identity"):
        message = f"content-encoding is {shown(encoding)}; expected a body that is not compressed"
        yield ApiError(status=415, message=message, param="content-encoding", code="unsupported_media_type")
    said = "".join(headers("content-type")[:1])
    if not is_type(said, body_type):
        message = f"content-type is {shown(said)}; expected {body_type}"
        yield ApiError(status=415, message=message, param="content-type", code="unsupported_media_type")


def operator_errors(headers: Headers, rules: AccessRules) -> Iterator[ApiError]:
    """Yield the error of a caller who is no operator."""
    if rules.token is None and not rules.accepts_operator(""):
        message = "a gateway without an admin token (QLM_ADMIN_TOKEN) serves operators on loopback only"
        yield ApiError(status=403, message=message, code="no_admin_token")
        return
    given = headers("authorization")
    if not any(rules.accepts_operator(each) for each in given or [""]):
        state = "wrong" if given else "missing"
        message = f"the admin token is {state}; expected `authorization: Bearer` with that of the gateway"
        challenge = {"www-authenticate": "Bearer"}
        yield ApiError(status=401, message=message, code="admin_token_required", headers=challenge)


def _has_body(headers: Headers) -> bool:
    length = "".join(headers("content-length")[:1])
    return bool(headers("transfer-encoding")) or length.strip("0 ") != ""
