"""Bodies of POST /v1/files: multipart forms whose file is stored as it comes."""

import asyncio
import contextlib
import io
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from aiohttp import BodyPartReader, MultipartReader, StreamReader
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from qlm.domain.shell.tasks import end_tasks
from qlm.domain.shown import cut
from qlm.gateway.api.errors import CLIENT_CLOSED, ApiError, invalid

Write = Callable[[bytes], Awaitable[None]]
"""Stores a piece of a file."""

_BUFFER_BYTES: Final = 256 * 1024
_FIELD_BYTES_MAX: Final = 1024
_FIELDS_MAX: Final = 16

_SKIP_S: Final = 5.0
"""Time for the rest of a file that cannot be stored: most clients read no answer before all is sent."""

_MALFORMED: Final = (ValueError, AssertionError, LookupError, RuntimeError, EOFError, HttpProcessingError)
"""What aiohttp raises at a form that is none."""


@dataclass(slots=True)
class Upload:
    """A form.

    Attributes:
        fields: Its fields but for the file.
        filename: Name of the file; None if it has none.
        size_bytes: Size of the file.
    """

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    size_bytes: int = 0


class _NotStoredError(Exception):
    """A chunk of the file was not stored: no mistake in the form, whatever the reason is."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


class _Flow(BaseProtocol):
    """Lets the body come no faster than it is stored."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.open = asyncio.Event()
        self.open.set()

    @property
    def connected(self) -> bool:
        """True: there is no connection here that could be lost."""
        return True

    def pause_reading(self) -> None:
        self._reading_paused = True
        self.open.clear()

    def resume_reading(self, resume_parser: bool = True) -> None:
        self._reading_paused = False
        self.open.set()


async def receive(request: HttpRequest, write: Write, bytes_max: int) -> Upload:
    """Write the file of a form piece by piece, and return the form.

    Raises:
        ApiError: The body is no form, or its file is too large; a part of it may be written then.
    """
    loop = asyncio.get_running_loop()
    flow = _Flow(loop)
    content = StreamReader(flow, _BUFFER_BYTES, loop=loop)
    feed = asyncio.create_task(_feed(request, content, flow))
    read = asyncio.create_task(_read(dict(request.headers), content, write, bytes_max))
    try:
        await asyncio.wait((feed, read), return_when=asyncio.FIRST_COMPLETED)
        if feed.done() and (failed := feed.exception()) is not None:
            raise failed
        return await read
    finally:
        await end_tasks([feed, read])


async def skip_body(request: HttpRequest) -> None:
    """Read, for a while, the body of a call that fails: most clients read no answer before all is sent."""
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_SKIP_S):
            async for _ in request.stream():
                pass


async def _feed(request: HttpRequest, content: StreamReader, flow: _Flow) -> None:
    try:
        async for part in request.stream():
            if part:
                content.feed_data(part)
            await flow.open.wait()
    except ClientDisconnect as error:
        raise ApiError(
            status=CLIENT_CLOSED, message="the client disconnected", code="client_closed"
        ) from error
    content.feed_eof()


async def _read(sent: Mapping[str, str], content: StreamReader, write: Write, bytes_max: int) -> Upload:
    upload = Upload()
    try:
        form = MultipartReader({"Content-Type": sent.get("content-type", "")}, content)
        while (part := await form.next()) is not None:
            if not isinstance(part, BodyPartReader) or part.name is None:
                raise _malformed("a part has no name")
            if part.name == "file":
                if upload.filename is not None:
                    raise _malformed("it has two files")
                upload.filename = _encodable(part.filename or "file")
                upload.size_bytes = await _store(part, write, bytes_max)
            elif len(upload.fields) < _FIELDS_MAX:
                upload.fields[_encodable(part.name)] = await _text(part)
            else:
                raise _malformed(f"it has more than {_FIELDS_MAX} fields")
    except _NotStoredError as error:
        raise error.reason from None
    except _MALFORMED as error:
        raise _malformed(" ".join(str(error).split()) or type(error).__name__) from error
    return upload


async def _store(part: BodyPartReader, write: Write, bytes_max: int) -> int:
    size = 0
    while chunk := await part.read_chunk(_BUFFER_BYTES):
        size += len(chunk)
        if size > bytes_max:
            message = f"the file has more than {bytes_max} bytes; expected at most that"
            close = {"connection": "close"}
            raise ApiError(status=413, message=message, param="file", code="file_too_large", headers=close)
        try:
            await write(bytes(chunk))
        except Exception as error:
            await _skip(part)
            raise _NotStoredError(error) from error
    return size


async def _skip(part: BodyPartReader) -> None:
    with contextlib.suppress(TimeoutError, *_MALFORMED):
        async with asyncio.timeout(_SKIP_S):
            while await part.read_chunk(_BUFFER_BYTES):
                pass


async def _text(part: BodyPartReader) -> str:
    value = io.BytesIO()
    while chunk := await part.read_chunk(_FIELD_BYTES_MAX):
        value.write(chunk)
        if value.tell() > _FIELD_BYTES_MAX:
            raise _malformed(f"a field has more than {_FIELD_BYTES_MAX} bytes")
    return value.getvalue().decode("utf-8", "replace")


def _encodable(name: str) -> str:
    """Replace the bytes of a name that are no UTF-8, which aiohttp keeps as surrogates."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _malformed(why: str) -> ApiError:
    message = f"the body is no form: {cut(why)}; expected multipart/form-data with `file` and `purpose`"
    return invalid(None, message, "invalid_form")
