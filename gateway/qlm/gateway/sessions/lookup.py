"""Requests in the shared state: status, and answers rendered from the output log."""

import asyncio
from collections.abc import Sequence
from typing import Final, cast

from qlm.domain.attainment import recorded_attainment
from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.formats.plain import slo_to_plain
from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice
from qlm.domain.ports.store import GatewayStore
from qlm.domain.request import RequestMetadata, RequestRecord
from qlm.domain.shown import cut
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.fields.requests import Objective, RequestStatus, TaskFields
from qlm.gateway.api.objective import tier_of
from qlm.gateway.core.answer_text import AnswerText, answer_text, finish_reason
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.core.logprobs.logged import LoggedLogprobs
from qlm.gateway.core.session import OTHER_BODY
from qlm.gateway.core.session_events import SendFinal
from qlm.gateway.core.tokenizer import Tokenizer
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.load.load_watch import LoadWatch
from qlm.gateway.sessions.load.unknown import unknown

BEGUN_ANEW: Final = "its output log was begun anew while it was read"

_RENDER_TOKENS: Final = 1024
"""Tokens rendered without a pause; between two such pieces other requests get their turn."""


async def known_request(
    store: GatewayStore, load: LoadWatch, id: RequestId, tenant: str | None
) -> RequestRecord:
    """Return a request's record.

    Args:
        store: The shared state.
        load: Knows whether that is whole.
        id: The request.
        tenant: The tenant of the caller; None for one who may see all. Requests of others are unknown to it.

    Raises:
        ApiError: The store does not know it: not yet (503), or no longer (404), or it was erased (404).
    """
    record = await _visible(store, id, tenant)
    if record is not None:
        load.note_state(record)
        return record
    error = await unknown(load, id, _absent(id))
    record = await _visible(store, id, tenant)
    if record is not None:
        return record
    raise error


async def _visible(store: GatewayStore, id: RequestId, tenant: str | None) -> RequestRecord | None:
    record = await store.record(id)
    if record is None or record.erased or tenant not in (None, record.metadata.tenant):
        return None
    return record


def request_status(record: RequestRecord, limits: GatewayLimits, now_ns: int) -> RequestStatus:
    """Return a request's state as JSON."""
    metadata = record.metadata
    met, late_by_s = recorded_attainment(record, now_ns)
    return {
        "id": metadata.id,
        "object": "qlm.request",
        "model": metadata.answers_as,
        "status": record.state,
        "outcome": record.outcome,
        "cancel_requested": record.cancel_requested,
        "created": metadata.arrival_ns // 10**9,
        "arrival_s": metadata.arrival_ns / 1e9,
        "deadline_s": _seconds(metadata.deadline_ns),
        "first_token_s": _seconds(record.first_token_ns),
        "ended_s": _seconds(record.ended_ns),
        "met": met,
        "late_by_s": late_by_s,
        "slo": _objective(metadata),
        "service_tier": tier_of(metadata.slo, limits),
        "priority": metadata.cls.priority,
        "prompt_tokens": metadata.prompt_tokens,
        "output_tokens": record.output_tokens,
        "instance": record.instance,
    }


def _objective(metadata: RequestMetadata) -> Objective:
    plain = slo_to_plain(metadata.slo) | {"on_miss": metadata.on_miss}
    if (deadline_ms := metadata.extensions.deadline_ms) is not None:
        plain["deadline_ms"] = deadline_ms
    if (task := _task(metadata.extensions)) is not None:
        plain["task"] = task
    return cast("Objective", plain)


def _task(extensions: RequestExtensions) -> TaskFields | None:
    if extensions.task_id is None or extensions.task_deadline_ns is None:
        return None
    return {
        "id": extensions.task_id,
        "deadline_s": extensions.task_deadline_ns / 1e9,
        "calls_left": None if extensions.task_calls is None else extensions.task_calls + 1,
    }


async def final_answer(gateway: Gateway, record: RequestRecord) -> SendFinal:
    """Return the end of a request that is settled, with text and tokens if it ended well.

    Its outcome may be worse than that of the record: the output log was lost, or begun anew, since.

    Raises:
        ApiError: The store was emptied after it returned the record.
    """
    metadata = record.metadata
    log = await gateway.store.read_output(metadata.id, 0)
    if log is None:
        raise await unknown(gateway.load, metadata.id, _absent(metadata.id))
    if log.fingerprint != metadata.fingerprint:
        return SendFinal(0, "", None, Outcome.OUTPUT_LOST, OTHER_BODY)
    outcome = log.outcome or (record.end_asked if record.outcome is None else None)
    if outcome is None:
        return SendFinal(log.end, "", None, Outcome.OUTPUT_LOST, BEGUN_ANEW)
    if not outcome.ok:
        return SendFinal(log.end, "", None, outcome, log.detail)
    return await _render(gateway.models.named(metadata.model).tokenizer, metadata, log, outcome)


async def _render(
    tokenizer: Tokenizer, metadata: RequestMetadata, log: OutputSlice, outcome: Outcome
) -> SendFinal:
    text = answer_text(metadata, tokenizer)
    pieces = [*await _fed(text, log), text.finish()]
    reason = finish_reason(text, outcome)
    logged = LoggedLogprobs(metadata)
    logged.put(log.extensions.logprobs_at)
    return SendFinal(
        text.tokens,
        "".join(pieces),
        reason,
        outcome,
        token_ids=log.token_ids[: text.tokens],
        stop_reason=text.stop_reason if reason == "stop" else None,
        cached_tokens=log.extensions.cached_tokens,
        logprobs=logged.answer(0, text.tokens),
        prompt_logprobs=logged.prompt(0),
    )


async def met_stop(gateway: Gateway, metadata: RequestMetadata) -> bool:
    """Return whether the answer of a request, as far as it is logged, has met a stop string."""
    log = await gateway.store.read_output(metadata.id, 0)
    if log is None or log.fingerprint != metadata.fingerprint:
        return False
    text = answer_text(metadata, gateway.models.named(metadata.model).tokenizer)
    await _fed(text, log)
    return text.met


async def _fed(text: AnswerText, log: OutputSlice) -> Sequence[str]:
    """Feed the tokens of a log; return the pieces of text."""
    pieces = []
    for start in range(0, len(log.token_ids), _RENDER_TOKENS):
        pieces.append(text.feed(log.token_ids[start : start + _RENDER_TOKENS]))
        await asyncio.sleep(0)
    return pieces


def _absent(id: RequestId) -> ApiError:
    message = f"request {cut(id)} not found: the id is unknown, or its result has expired"
    return ApiError(status=404, message=message, param="id", code="request_not_found")


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9
