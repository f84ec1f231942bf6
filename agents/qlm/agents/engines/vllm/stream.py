"""Parser for the token stream of vLLM's /inference/v1/generate."""

import struct
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from qlm.agents.engines.http.statuses import FAULTS_OF_REQUESTS
from qlm.domain.errors import EngineGarbledError, EngineRefusedError, EngineUnavailableError
from qlm.domain.formats.token_logprobs import UNKNOWN, TokenLogprob, pack
from qlm.domain.ids import TOKEN_ID_MAX
from qlm.domain.ports.engine import EngineChunk
from qlm.domain.shown import cut, shown

_EVENT_END: Final = b"\n\n"
_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
_FINISHES: Final = frozenset({"stop", "length", "abort"})

_SHOWN_MAX: Final = 500
"""Characters of an error that become the detail of its request, which events of its history repeat."""

EVENT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size of an event without its end at which the engine is taken for broken: those of vLLM have a few KiB."""


@dataclass(slots=True)
class EngineStream:
    """Incremental parser from the bytes of one stream to chunks; does no I/O.

    All tokens of one read become one chunk. The last chunk is buffered until the stream itself ends, because
    the token counts follow it; in practice both come in the same read.

    Attributes:
        done: The final `[DONE]` has been read.
        finish: The finish reason of the answer, once known.
        cached_tokens: Prompt tokens found in the prefix cache, if the engine reports them.
        logprobs: Candidates per token whose log probabilities were asked for; None if none were.
        tokens_max: Tokens that were asked for at most; None for no limit.
    """

    logprobs: int | None = None
    tokens_max: int | None = None
    done: bool = False
    finish: str | None = None
    cached_tokens: int | None = None
    _rest: bytearray = field(default_factory=bytearray)
    _token_ids: list[int] = field(default_factory=list)
    _packed: bytes = b""
    _tokens: int = 0

    def feed(self, data: bytes) -> EngineChunk | None:
        """Parse the bytes of one read; return their tokens, unless there are none or they may be the last.

        Raises:
            EngineUnavailableError: The engine reports an internal error.
            EngineGarbledError: The data cannot be parsed.
            EngineRefusedError: The engine reports an error of the request.
        """
        for event in self._events(data):
            if not event.startswith(_DATA):
                continue
            payload = event[len(_DATA) :].strip()
            if payload == _DONE:
                self.done = True
            else:
                self._parse(payload)
        if not self._token_ids or self.done or self.finish is not None:
            return None
        chunk = EngineChunk(token_ids=tuple(self._token_ids), logprobs=self._packed)
        self._token_ids.clear()
        self._packed = b""
        return chunk

    def last(self) -> EngineChunk | None:
        """Return the buffered last chunk once the connection has closed, or None.

        Raises:
            EngineUnavailableError: The stream ended early.
        """
        if self.finish is None and not self.done:
            raise EngineUnavailableError("the engine's stream broke off before its end")
        if self.finish is None and not self._token_ids:
            return None
        return EngineChunk(
            token_ids=tuple(self._token_ids),
            finish=self.finish,
            cached_tokens=self.cached_tokens,
            logprobs=self._packed,
        )

    def _events(self, data: bytes) -> list[bytes]:
        """Return the events that end in this read; of an event in many reads, no byte is searched twice."""
        if self._rest:
            searched = len(self._rest) - 1
            self._rest += data
            data = b"" if self._rest.find(_EVENT_END, searched) < 0 else bytes(self._rest)
        *events, rest = data.split(_EVENT_END)
        if events:
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > EVENT_BYTES_MAX:
            raise EngineGarbledError(f"the engine sent {len(self._rest)} bytes of an event without its end")
        return events

    def _parse(self, payload: bytes) -> None:
        try:
            event: dict[str, Any] = orjson.loads(payload)
            if (error := event.get("error")) is not None:
                raise _error(error)
            for choice in event["choices"]:
                self._add(choice["token_ids"])
                if self.logprobs is not None:
                    self._packed += read_logprobs(choice, self.logprobs)
                if (finish := choice["finish_reason"]) is not None:
                    if finish not in _FINISHES:
                        raise EngineUnavailableError(f"the engine ended the answer with {shown(finish)}")
                    self.finish = finish
            if (usage := event.get("usage")) is not None:
                details = usage.get("prompt_tokens_details") or {}
                self.cached_tokens = _count(details.get("cached_tokens"))
        except (
            orjson.JSONDecodeError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            struct.error,
        ) as error:
            raise EngineGarbledError(f"the engine sent {payload[:200]!r}: {error!r}") from error

    def _add(self, token_ids: list[Any]) -> None:
        if token_ids and self.finish is not None:
            raise ValueError("tokens after the end of the answer")
        for token_id in token_ids:
            if type(token_id) is not int or not 0 <= token_id <= TOKEN_ID_MAX:
                raise TypeError(f"token id {shown(token_id)}")
            self._token_ids.append(token_id)
        self._tokens += len(token_ids)
        if self.tokens_max is not None and self._tokens > self.tokens_max:
            raise EngineGarbledError(
                f"the engine generated {self._tokens} tokens; at most {self.tokens_max} were asked for"
            )


def _count(value: object) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise TypeError(f"a count of {shown(value)}")
    return value


def _error(error: object) -> EngineRefusedError | EngineUnavailableError:
    # A fault of the request, which the engine may detect only after its 200.
    plain = error if isinstance(error, dict) else {"message": error}
    message = f"the engine reports: {cut(str(plain.get('message')), _SHOWN_MAX)}"
    code = plain.get("code")
    refused = isinstance(code, int) and code in FAULTS_OF_REQUESTS
    return EngineRefusedError(f"{message} ({code})") if refused else EngineUnavailableError(message)


def read_logprobs(choice: dict[str, Any], top: int) -> bytes:
    """Return the log probabilities of a choice's tokens, packed; those that it lacks are unknown.

    vLLM lists the sampled token first among the candidates, then the others by rank.
    """
    content = (choice.get("logprobs") or {}).get("content") or ()
    known = [_token(each) for each in content[: len(choice["token_ids"])]]
    return pack(known + [UNKNOWN] * (len(choice["token_ids"]) - len(known)), top)


def _token(entry: dict[str, Any]) -> TokenLogprob:
    others = entry.get("top_logprobs", ())[1:]
    candidates = tuple((int(each["token_id"]), float(each["logprob"])) for each in others)
    return TokenLogprob(float(entry["logprob"]), int(entry.get("rank") or 0), candidates)
