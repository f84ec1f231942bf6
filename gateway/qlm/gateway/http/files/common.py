"""What routes of files and batches share: the tenant, the folder, and pages of lists."""

from collections.abc import Sequence
from typing import Final, TypeVar

from starlette.requests import Request as HttpRequest

from qlm.domain.shown import cut
from qlm.gateway.api.errors import ApiError, invalid, shown
from qlm.gateway.api.translate import KEY_TENANT, named_tenant
from qlm.gateway.files.records import PAGE_MAX, page_after
from qlm.gateway.files.storage import Storage
from qlm.gateway.http.completions import lower_headers
from qlm.gateway.sessions.gateway import Gateway

T = TypeVar("T")

PAGE_DEFAULT: Final = 100
ORDERS: Final = ("desc", "asc")
_DIGITS_MAX: Final = 20


def caller_tenant(request: HttpRequest) -> str:
    """Return the tenant of a call: that of its API key, or the one that its headers name."""
    headers = lower_headers(request)
    return headers.get(KEY_TENANT) or named_tenant(headers)


def storage_of(gateway: Gateway) -> Storage:
    """Return the files and batches of a gateway.

    Raises:
        ApiError: It keeps none.
    """
    if gateway.storage is None:
        message = "this gateway keeps no files; expected files.dir or files.s3 in its configuration"
        raise ApiError(status=404, message=message, code="files_not_kept")
    return gateway.storage


def file_not_found(id: str) -> ApiError:
    """Return the error for a file that the tenant does not have."""
    message = f"file {cut(id)} not found: the id is unknown, or it has expired"
    return ApiError(status=404, message=message, param="id", code="file_not_found")


def batch_not_found(id: str) -> ApiError:
    """Return the error for a batch that the tenant does not have."""
    message = f"batch {cut(id)} not found: the id is unknown, or it ended long ago"
    return ApiError(status=404, message=message, param="id", code="batch_not_found")


def page_limit(text: str | None, default: int = PAGE_DEFAULT, most: int = PAGE_MAX) -> int:
    """Return the query parameter `limit` of a list.

    Args:
        text: The parameter; None without.
        default: The limit without it.
        most: The largest limit.

    Raises:
        ApiError: It is not a number from 1 to `most`.
    """
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and 1 <= int(text) <= most):
        raise invalid("limit", f"limit is {shown(text)}; expected a number from 1 to {most}")
    return int(text)


def oldest_first(order: str | None) -> bool:
    """Return whether the query parameter `order` of a list asks for the first entry first.

    Raises:
        ApiError: It is no order.
    """
    if order not in (None, *ORDERS):
        raise invalid("order", f"order is {shown(order)}; expected {' or '.join(ORDERS)}")
    return order == "asc"


def page_of(
    found: Sequence[T], ids: Sequence[str], after: str | None, limit: int
) -> tuple[Sequence[T], bool]:
    """Return a part of a list, and whether more follow.

    Args:
        found: The whole list.
        ids: Their ids.
        after: Id behind which the part begins; None for the beginning.
        limit: Most entries.

    Raises:
        ApiError: There is no such id.
    """
    try:
        return page_after(found, ids, after, limit)
    except LookupError as error:
        raise not_listed(after) from error


def not_listed(after: str | None) -> ApiError:
    """Return the error for a part of a list that is to begin behind what is not in it."""
    return invalid("after", f"after is {shown(after)}; expected an id of this list")
