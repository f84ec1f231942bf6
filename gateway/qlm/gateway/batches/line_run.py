"""One line of a batch as a durable request: queued, waited for, and turned into a line of output."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from qlm.domain.errors import QlmError
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.outcome import Outcome
from qlm.gateway.api.errors import ApiError, defect, from_outcome, from_qlm
from qlm.gateway.api.translate import KEY_TENANT
from qlm.gateway.batches.line_routes import PreparedLine, PrepareLine
from qlm.gateway.batches.line_slots import LineSlots
from qlm.gateway.batches.lines import Line
from qlm.gateway.core.session import Mode
from qlm.gateway.core.session_events import SendEvent, SendFinal
from qlm.gateway.files.records import BatchSpec
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.idempotency import KEY_EXHAUSTED, KEY_HEADER, keyed_id
from qlm.gateway.tokenizers.served_models import MODEL_NOT_FOUND

_log = logging.getLogger(__name__)

PAUSE_MIN_S: Final = 0.2
PAUSE_MAX_S: Final = 30.0
"""Bounds of the pause after a refusal that asks for another try."""

PAUSE_AWAY_S: Final = 1.0
"""Pause after the first refusal because a part is away; it doubles with each further one in a row."""

TRIES_MAX: Final = 3
"""Tries of a line whose engine or output was lost, or that met a bug."""

_AWAY: Final = 503
_AGAIN: Final = (429, _AWAY)
"""Statuses that ask for another try: too much waits, or a part is away."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A line with its end.

    Attributes:
        ok: It belongs in the output, else among the errors.
        fields: Its line there.
    """

    ok: bool
    fields: Mapping[str, Any]


class EndSink:
    """Hands the end of an answer to its line."""

    def __init__(self) -> None:
        self._end: asyncio.Future[SendFinal | ApiError] = asyncio.get_running_loop().create_future()

    def event(self, event: SendEvent) -> None:
        """Ignore it: the end has all text."""

    def keep_alive(self) -> None:
        """Ignore it."""

    def final(self, final: SendFinal) -> None:
        """Hand over the end."""
        self._set(final)

    def interrupt(self, error: ApiError) -> None:
        """Hand over why this gateway no longer waits; the request continues."""
        self._set(error)

    async def wait(self) -> SendFinal | ApiError:
        """Wait for the end."""
        return await self._end

    def _set(self, end: SendFinal | ApiError) -> None:
        if not self._end.done():
            self._end.set_result(end)


class LineRun:
    """Runs one line; its request has an id by batch and line, so that it is generated once.

    Attributes:
        request_id: The request that was queued last; None before.
    """

    def __init__(
        self, gateway: Gateway, spec: BatchSpec, line: Line, prepare: PrepareLine, slots: LineSlots
    ) -> None:
        """Run nothing yet; a line whose request is not queued gets no further try if the slots say so."""
        self.request_id: RequestId | None = None
        self._slots = slots
        self._gateway = gateway
        self._spec = spec
        self._line = line
        self._prepare = prepare
        self._keys_used_up = 0
        self._queued = False  # its request was in the queue when it was last waited for
        self._away = 0  # refusals in a row because a part is away

    async def was_queued(self) -> bool:
        """Return whether the shared state knows a request of the line.

        Raises:
            QlmError: The store is unavailable.
        """
        first = keyed_id(self._spec.tenant, line_key(self._spec, self._line, 0), 0)
        return await self._gateway.store.record(first) is not None

    async def run(self) -> Answered | None:
        """Return the line's end, or None: its batch stopped or was paused before its request was queued.

        It waits while parts of QLM are away.
        """
        tries = 0
        while True:
            try:
                if (done := await self._once()) is None:
                    return None
                line, end = done
                if end.outcome.ok:
                    return self._response(200, await line.answer(line.prepared.metadata, end))
                tries += 1
                if end.outcome in (Outcome.ENGINE_LOST, Outcome.OUTPUT_LOST) and tries < TRIES_MAX:
                    continue
                error = from_outcome(end.outcome, end.detail)
                return self._response(error.status, error.body())
            except (ApiError, QlmError) as failure:
                error = failure if isinstance(failure, ApiError) else from_qlm(failure)
                again = error.status in _AGAIN or self._is_for_others(error)
            except Exception as failure:  # a bug: it costs this line, and no other of the batch
                self._gateway.faults.note(_log, failure, "a line of batch %s failed", self._spec.id)
                tries += 1
                error, again = defect(failure, self.request_id or ""), tries < TRIES_MAX
            if not again:
                return self._response(error.status, error.body())
            self._away = self._away + 1 if error.status == _AWAY or self._is_for_others(error) else 0
            if not await self._goes_on_after(pause_s(error, self._away)):
                return None

    async def _goes_on_after(self, pause_s: float) -> bool:
        """Return whether the line goes on after a pause, which a stop of the batch cuts short.

        While the batch is paused, only a line whose request is in the queue goes on.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._slots.stopped.wait()
        return self._slots.may_begin or (self._queued and not self._slots.stopped.is_set())

    async def _once(self) -> tuple[PreparedLine, SendFinal] | None:
        """Queue the line's request, or find it, and wait for its end.

        Raises:
            ApiError: It was refused, or this gateway waits no longer.
        """
        line = await self._prepared()
        if line.prepared.request is not None and not self._slots.may_begin:
            return None
        self.request_id = line.prepared.metadata.id
        self._queued = line.prepared.request is None
        sink = EndSink()
        await self._gateway.intake.accept(line.prepared, sink, Mode.WHOLE)
        self._queued = True
        if (
            self._slots.stopped.is_set()
        ):  # `BatchRun` may have cancelled its lines before this one was indexed
            await self._gateway.store.cancel(self.request_id, why=self._slots.why_stopped)
        end = await sink.wait()
        if isinstance(end, ApiError):
            raise end
        return line, end

    async def _prepared(self) -> PreparedLine:
        """Admit the line under the first of its keys that is not used up; each has a few attempts.

        Every gateway tries the same keys in the same order, so that the request of an earlier try is found.
        """
        # The same at each try, too. Batch work that would be late waits; it is not refused for that.
        objective = {"deadline_at": self._spec.expires_s, "on_miss": "drop", "p_met_min": 0}
        while True:
            key = line_key(self._spec, self._line, self._keys_used_up)
            headers = {KEY_TENANT: self._spec.tenant, KEY_HEADER: key}
            try:
                return await self._prepare(self._gateway, {**self._line.body, "slo": objective}, headers)
            except ApiError as error:
                if error.code != KEY_EXHAUSTED:
                    raise
            self._keys_used_up += 1

    def _is_for_others(self, error: ApiError) -> bool:
        """Return whether gateways that know the model go on: an instance serves it, or may."""
        load, model = self._gateway.load.load, self._line.body.get("model")
        served = load.at_ns is None or (isinstance(model, str) and ModelId(model) in load.live_models)
        return error.code == MODEL_NOT_FOUND and served

    def _response(self, status: int, body: Mapping[str, Any]) -> Answered:
        response = {"status_code": status, "request_id": self.request_id or "", "body": body}
        return Answered(status == 200, line_fields(self._spec, self._line, response, None))


def not_run(spec: BatchSpec, line: Line, code: str, message: str) -> Answered:
    """Return the end of a line that got no answer in time, or was cancelled."""
    return Answered(False, line_fields(spec, line, None, {"code": code, "message": message}))


def line_fields(
    spec: BatchSpec, line: Line, response: Mapping[str, Any] | None, error: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return a line of output, as OpenAI writes it."""
    id = hashlib.blake2b(f"{spec.id}-{line.number}".encode(), digest_size=12).hexdigest()
    return {
        "id": f"batch_req_{id}",
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }


def line_key(spec: BatchSpec, line: Line, used_up: int) -> str:
    """Return the key of a line's request, once so many earlier keys are used up."""
    return f"{spec.id}-{line.number}" + (f".{used_up}" if used_up else "")


def pause_s(error: ApiError, away: int) -> float:
    """Return the pause after a refusal, seconds.

    Args:
        error: The refusal, which may ask for a pause.
        away: Refusals in a row because a part is away, this one included.
    """
    asked_s = int(error.headers.get("retry-after-ms", "1000")) / 1000
    longer_s = PAUSE_AWAY_S * 2.0 ** min(away - 1, 10) if away else 0.0
    return min(max(asked_s, longer_s, PAUSE_MIN_S), PAUSE_MAX_S)
