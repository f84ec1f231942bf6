"""Client that sends bytes as they are, and reads what comes back as HTTP."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

ANSWER_S: Final = 120.0
"""Longest wait for the answer to a well-framed request; those of low priority wait for all others."""

MISFRAMED_S: Final = 0.3
"""Longest wait for an answer to what may not be a whole request."""


class BadAnswerError(Exception):
    """Bytes that are no HTTP answer, or an answer that ends too early."""


class NoAnswerError(Exception):
    """The connection was closed, or nothing came in time, before an answer began.

    Attributes:
        waited: The time was up.
    """

    def __init__(self, why: str, *, waited: bool = False) -> None:
        super().__init__(why)
        self.waited = waited


@dataclass(slots=True, kw_only=True)
class Answer:
    """An answer; names of headers are in lower case."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    closes: bool = False


class Wire:
    """One connection at a time to one address."""

    def __init__(self, host: str, port: int) -> None:
        """Connect later, for the first request."""
        self.address = (host, port)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, data: bytes, *, bodiless: bool = False) -> Answer:
        """Send a well-framed request and return its answer; `bodiless` for the answer to HEAD.

        Raises:
            NoAnswerError: There is none.
            BadAnswerError: It is not HTTP.
        """
        reused = self._writer is not None
        try:
            return await self._ask(data, bodiless=bodiless)
        except NoAnswerError as error:
            await self.close()
            if not reused or error.waited:
                raise
        return await self._ask(data, bodiless=bodiless)  # the server had closed an idle connection

    async def tell(self, data: bytes) -> list[Answer]:
        """Send anything on a connection of its own; return all answers that come within a short time.

        Raises:
            BadAnswerError: Something else came.
        """
        await self.close()
        answers: list[Answer] = []
        try:
            reader = await self._send(data)
            while True:
                answers.append(await asyncio.wait_for(_read(reader, bodiless=False), MISFRAMED_S))
        except (NoAnswerError, TimeoutError, OSError):
            return answers
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connection."""
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _ask(self, data: bytes, *, bodiless: bool) -> Answer:
        try:
            reader = await self._send(data)
            answer = await asyncio.wait_for(_read(reader, bodiless=bodiless), ANSWER_S)
        except TimeoutError as error:
            raise NoAnswerError(f"nothing within {ANSWER_S:g} s", waited=True) from error
        except OSError as error:
            raise NoAnswerError(str(error)) from error
        if answer.closes:
            await self.close()
        return answer

    async def _send(self, data: bytes) -> asyncio.StreamReader:
        if self._writer is None or self._reader is None or self._writer.is_closing():
            await self.close()
            self._reader, self._writer = await asyncio.open_connection(*self.address, limit=2**20)
        self._writer.write(data)
        with suppress(ConnectionError):  # the answer may be there although the server reads no further
            await asyncio.wait_for(self._writer.drain(), ANSWER_S)
        return self._reader


async def _read(reader: asyncio.StreamReader, *, bodiless: bool) -> Answer:
    answer = await _head(reader)
    while 100 <= answer.status < 200:
        answer = await _head(reader)
    if bodiless or answer.status in (204, 304):
        return answer
    try:
        answer.body = await _body(reader, answer)
    except (asyncio.IncompleteReadError, ValueError) as error:
        raise BadAnswerError(f"status {answer.status}, then {error!r}") from error
    return answer


async def _head(reader: asyncio.StreamReader) -> Answer:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise BadAnswerError(f"{error.partial[:100]!r}") from error
        raise NoAnswerError("the connection was closed") from error
    first, *lines = head[:-4].split(b"\r\n")
    words = first.split(b" ", 2)
    if len(words) < 2 or words[0] not in (b"HTTP/1.1", b"HTTP/1.0") or not words[1].isdigit():
        raise BadAnswerError(f"{first[:100]!r}")
    answer = Answer(status=int(words[1]))
    for line in lines:
        name, _, value = line.partition(b":")
        answer.headers[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")
    answer.closes = answer.headers.get("connection", "").lower() == "close"
    return answer


async def _body(reader: asyncio.StreamReader, answer: Answer) -> bytes:
    if "chunked" in answer.headers.get("transfer-encoding", ""):
        return await _chunks(reader)
    if "content-length" in answer.headers:
        return await reader.readexactly(int(answer.headers["content-length"]))
    answer.closes = True
    return await reader.read()


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readexactly(2)
    return b"".join(parts)
