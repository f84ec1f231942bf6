"""Client of the listener of a gateway for operators."""

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus
from http.client import BadStatusLine, HTTPException, RemoteDisconnected
from typing import Any, Final

from qlm.domain.errors import InvalidValueError, QlmError
from qlm.domain.formats.server_address import is_http_address
from qlm.domain.shown import shown, without_password

TIMEOUT_S: Final = 10.0

_AS_GIVEN: Final = "surrogateescape"
"""How Python reads bytes of a command line that are not UTF-8."""

_TOKEN: Final = re.compile("[!-~]+")


class AdminError(QlmError):
    """The gateway cannot be reached, or refused.

    Attributes:
        code: Its error code, if it gave one.
        body: Its answer, if that is a state instead of an error.
    """

    def __init__(self, message: str, code: str | None = None, body: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.body = body


class RefusedValueError(AdminError):
    """The gateway refused a value that it was given: its status was 400."""


def segment(id: str) -> str:
    """Quote an id as one segment of a path; bytes that are not UTF-8 stay as they were given."""
    return urllib.parse.quote(id, safe="", errors=_AS_GIVEN)


class AdminClient:
    """Blocking HTTP client of one gateway."""

    def __init__(self, base_url: str, token: str | None = None) -> None:
        """Ask nothing yet.

        Args:
            base_url: Address of the gateway's listener for operators.
            token: The admin token; None if there is none.

        Raises:
            InvalidValueError: That is no address, or no token.
        """
        if token is not None and not _TOKEN.fullmatch(token):
            # Not shown: it is a token with something too much, such as the end of a line.
            raise InvalidValueError(
                "QLM_ADMIN_TOKEN", "no token", "ASCII characters without spaces, in one line"
            )
        self._token = token
        self._base_url = base_url.rstrip("/")
        if not is_http_address(base_url) or urllib.parse.urlsplit(base_url).username is not None:
            expected = "an address such as http://127.0.0.1:8090, without user and password"
            raise InvalidValueError("--url", without_password(base_url), expected)

    def get(self, path: str, **query: Any) -> Any:
        """GET a path with query parameters; those that are None are left out."""
        given = {key: value for key, value in query.items() if value is not None}
        written = urllib.parse.urlencode(given, errors=_AS_GIVEN)
        return self._call("GET", f"{path}?{written}" if given else path)

    def get_in_any_state(self, path: str) -> Any:
        """GET a path whose 503 has the same JSON as its 200, such as `/readyz`."""
        try:
            return self._call("GET", path)
        except AdminError as error:
            if error.body is None:
                raise
            return error.body

    def text(self, path: str) -> str:
        """GET a path that answers with text, such as `/metrics`."""
        return self._read("GET", path).decode("utf-8", "replace")

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """POST to a path, with JSON if there is a body."""
        return self._call("POST", path, body)

    def delete(self, path: str) -> Any:
        """DELETE a path."""
        return self._call("DELETE", path)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            return json.loads(self._read(method, path, body))
        except ValueError as error:
            raise self._silent(error) from error

    def _read(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        request = urllib.request.Request(f"{self._base_url}{path}", method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("content-type", "application/json")
        if self._token is not None:
            request.add_unredirected_header("authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                read: bytes = answer.read()
                return read
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from error
        except (OSError, HTTPException) as error:
            raise self._silent(error) from error

    def _silent(self, error: Exception) -> AdminError:
        return AdminError(
            f"no QLM gateway answers at {self._base_url} ({_reason(error)}); "
            "start one with `qlm serve`, or give --url"
        )

    def _refusal(self, error: urllib.error.HTTPError) -> AdminError:
        whole = None
        try:
            whole = json.load(error)
            body = whole["error"]
            message, code = str(body["message"]), body["code"]
        except (ValueError, KeyError, TypeError):
            body = whole if isinstance(whole, dict) and "status" in whole else None
            return AdminError(f"the gateway answered {error.code} {error.reason}", body=body)
        if code == "admin_token_required":
            message += "; set QLM_ADMIN_TOKEN, or give the --config of the gateway"
        refused = RefusedValueError if error.code == HTTPStatus.BAD_REQUEST else AdminError
        return refused(message, code)


def _reason(error: Exception) -> str:
    match error:
        case RemoteDisconnected():
            return str(error)
        case BadStatusLine():
            # Its text is what the other server sent: bytes of any protocol.
            return "what listens there does not speak HTTP; the port of a gateway for gRPC does not"
        case HTTPException():
            return shown(str(error))
        case json.JSONDecodeError() | UnicodeDecodeError():
            return "its answer is not JSON"
        case _:
            return str(getattr(error, "reason", error))
