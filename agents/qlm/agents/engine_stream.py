"""Reading the token stream of vLLM's /inference/v1/generate, cheaply."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from qlm.domain.errors import EngineRefusedError, EngineUnavailableError
from qlm.domain.ports.engine import EngineChunk

_EVENT_END: Final = b"\n\n"
_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
_FINISHES: Final = frozenset({"stop", "length", "abort"})


@dataclass(slots=True)
class EngineStream:
    """Turns the bytes of one stream into chunks; knows no socket.

    All tokens of one read become one chunk. The last chunk is held back until the stream itself ends,
    since the token counts come after it; that is the same read, in practice.

    Attributes:
        done: The stream said that it is over.
        finish: How the answer ended, once that is known.
        cached_tokens: Prompt tokens found in the prefix cache, if the engine says so.
    """

    done: bool = False
    finish: str | None = None
    cached_tokens: int | None = None
    _rest: bytes = b""
    _token_ids: list[int] = field(default_factory=list)

    def feed(self, data: bytes) -> EngineChunk | None:
        """Take what was read; return its tokens, if there are any and more is to come.

        Raises:
            EngineUnavailableError: The engine reports an error of its own, or speaks another language.
            EngineRefusedError: It reports an error of the request.
        """
        for payload in self._payloads(data):
            if payload == _DONE:
                self.done = True
            else:
                self._take(payload)
        if not self._token_ids or self.done or self.finish is not None:
            return None
        chunk = EngineChunk(token_ids=tuple(self._token_ids))
        self._token_ids.clear()
        return chunk

    def last(self) -> EngineChunk | None:
        """Return the last chunk, after the stream has ended; None if it ended without one.

        Raises:
            EngineUnavailableError: The stream broke off before its end.
        """
        if self.finish is None and not self.done:
            raise EngineUnavailableError("the engine's stream broke off before its end")
        if self.finish is None and not self._token_ids:
            return None
        return EngineChunk(
            token_ids=tuple(self._token_ids), finish=self.finish, cached_tokens=self.cached_tokens
        )

    def _payloads(self, data: bytes) -> Iterator[bytes]:
        *events, self._rest = (self._rest + data).split(_EVENT_END)
        for event in events:
            if event.startswith(_DATA):
                yield event[len(_DATA) :].strip()

    def _take(self, payload: bytes) -> None:
        try:
            event: dict[str, Any] = orjson.loads(payload)
            if (error := event.get("error")) is not None:
                raise _error(error)
            for choice in event["choices"]:
                self._token_ids += choice["token_ids"]
                if (finish := choice["finish_reason"]) is not None:
                    self._end(finish)
            if (usage := event.get("usage")) is not None:
                details = usage.get("prompt_tokens_details") or {}
                self.cached_tokens = details.get("cached_tokens")
        except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError) as error:
            raise EngineUnavailableError(f"the engine sent {payload[:200]!r}: {error!r}") from error

    def _end(self, finish: str) -> None:
        if finish not in _FINISHES:
            raise EngineUnavailableError(f"the engine ended the answer with {finish!r}")
        self.finish = finish


def _error(error: object) -> EngineRefusedError | EngineUnavailableError:
    """Tell a fault of the request, which the engine may find only after its 200, from one of the engine."""
    plain = error if isinstance(error, dict) else {"message": error}
    said = f"the engine reports: {plain.get('message')}"
    code = plain.get("code")
    refused = isinstance(code, int) and 400 <= code < 500
    return EngineRefusedError(f"{said} ({code})") if refused else EngineUnavailableError(said)
