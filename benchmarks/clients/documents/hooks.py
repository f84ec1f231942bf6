"""What Schemathesis may not take for a defect."""

from importlib import import_module
from typing import Any

_UNKNOWN = "x-schemathesis-unknown-property"

_OBJECTIVE = ("x-slo-", "x-llm-d-slo-", "x-qlm-deadline-ms", "x-qlm-p-met")
_TENANT, _OTHER_TENANT = "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"


def filter_case(context: Any, case: Any) -> bool:
    """Leave out wrong values of headers that are not read.

    HTTP has headers that no document names, a body with an objective or a tenant of its own wins over headers
    that name one, and the first header that names a tenant wins over the second.
    """
    headers = [str(name).lower() for name in case.headers or {}]
    body = case.body if isinstance(case.body, dict) else {}
    unread = [
        _UNKNOWN,
        *(_OBJECTIVE if "slo" in body else ()),
        *((_TENANT, _OTHER_TENANT) if "user" in body else ()),
    ]
    unread += [_OTHER_TENANT] if _TENANT in headers else []
    query = case.query if isinstance(case.query, dict) else {}
    # A response that is asked for whole has no events.
    whole = case.path.startswith("/v1/responses") and query.get("stream") not in (True, "true")
    unread += ["last-event-id"] if whole and case.method.upper() == "GET" else []
    return not any(header.startswith(each) for header in headers for each in unread)


import_module("schemathesis").hook(filter_case)
