"""From a checked body to a request that is durably queued: the steps between the client and the queue."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from qlm.broker.codec import encode_request
from qlm.domain.errors import BrokerUnavailableError, StoreEmptiedError, StoreUnavailableError
from qlm.domain.ids import RequestId, TokenIds
from qlm.domain.outcome import Outcome
from qlm.domain.request import Request, RequestCard, RequestRecord, RequestState
from qlm.domain.slo import Slo
from qlm.gateway.admission import Refuse, decide
from qlm.gateway.answer_text import answer_text
from qlm.gateway.errors import ApiError, from_qlm, invalid, retry_headers, shown
from qlm.gateway.forecast import asked
from qlm.gateway.gateway import Gateway
from qlm.gateway.hub import Seat
from qlm.gateway.idempotency import ATTEMPTS_MAX, fingerprint, keyed_id
from qlm.gateway.objective import p_met_min
from qlm.gateway.schema import Body, ChatBody
from qlm.gateway.session import Mode, Session
from qlm.gateway.sinks import Sink
from qlm.gateway.tokenizer import ServedModel
from qlm.gateway.translate import Arrival, chat_messages, tenant, to_card, with_prompt

_log = logging.getLogger(__name__)

KEY_HEADER: Final = "idempotency-key"
KEY_CHARACTERS_MAX: Final = 255
_WITHDRAW_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request about to be queued, or one that a retry found.

    Attributes:
        card: The request without its prompt.
        request: The whole request, if it is new.
        keyed: It came with an Idempotency-Key.
        state: Where it stands.
    """

    card: RequestCard
    request: Request | None
    keyed: bool
    state: RequestState = RequestState.QUEUED


async def prepare(
    gateway: Gateway,
    body: Body,
    plain: dict[str, Any],
    headers: Mapping[str, str],
    *,
    detached: bool = False,
    default_slo: Slo | None = None,
) -> Prepared:
    """Translate, tokenize and admit; or find the request that an earlier try brought.

    Args:
        gateway: This gateway.
        body: The checked body.
        plain: The same as it came, for the digest that goes with an Idempotency-Key.
        headers: Header names in lower case.
        detached: The client does not wait.
        default_slo: Objective if it names none, instead of the configured default.

    Raises:
        ApiError: It is not acceptable, now or ever.
        QlmError: A value is out of range, or the store is needed and away.
    """
    now_ns = gateway.clock.now_ns()
    served = gateway.served(body.model)
    key = headers.get(KEY_HEADER)
    id, digest = gateway.new_id(), ""
    if key is not None:
        digest = fingerprint(plain)
        id, found = await _find(gateway, tenant(body, headers), _checked(key), digest)
        if found is not None:
            return Prepared(card=found.card, request=None, keyed=True, state=found.state)
    arrival = Arrival(
        id=id,
        headers=headers,
        now_ns=now_ns,
        fingerprint=digest,
        detached=detached,
        default_slo=default_slo,
    )
    prompt_ids = await _encode(gateway, body, served)
    if key is not None and (twin := gateway.hub.card_of(id)) is not None:
        # A try that has not reached the store yet; from here to its session nothing waits.
        _check_body(key, twin, digest)
        return Prepared(card=twin, request=None, keyed=True)
    card = to_card(body, prompt_ids, served, gateway.limits, arrival)
    _admit(gateway, card, p_met_min(body.slo, headers, gateway.limits))
    return Prepared(card=card, request=with_prompt(card, prompt_ids), keyed=key is not None)


def _admit(gateway: Gateway, card: RequestCard, p_met_min: float | None) -> None:
    outlook, wish = gateway.load.outlook(), asked(card, p_met_min)
    verdict = decide(gateway.load.load, gateway.limits, card.cls, card.prompt_tokens, outlook, wish)
    if isinstance(verdict, Refuse):
        raise _refused(verdict)


def open_seat(
    gateway: Gateway,
    card: RequestCard,
    sink: Sink,
    mode: Mode,
    *,
    grace_s: float,
    counted: bool,
    shown: int = 0,
) -> Seat:
    """Begin a session on a request.

    Raises:
        ApiError: Its model is not served here.
    """
    text = answer_text(card, gateway.served(card.model).tokenizer)
    session = Session(card, text, mode, gateway.timing(grace_s), gateway.clock.now_ns(), shown)
    return gateway.hub.add(session, sink, counted=counted)


async def publish(
    gateway: Gateway, request: Request, card: RequestCard, seat: Seat | None, kind: str
) -> None:
    """Queue a request durably, then index it.

    Raises:
        ApiError: The broker did not confirm; nothing was accepted.
    """
    incarnation = gateway.load.incarnation
    request = gateway.spans.begin(request)
    try:
        await _confirmed(gateway, request)
    except BrokerUnavailableError as error:
        gateway.load.count_refused(gateway.clock.now_ns(), str(error))
        gateway.spans.not_queued(card.id)
        _forget(gateway, seat)
        await _withdraw(gateway, card)
        raise from_qlm(error) from error
    except BaseException as error:
        gateway.spans.left(card.id, gateway.clock.now_ns(), repr(error))
        _forget(gateway, seat)
        raise
    outlook = gateway.load.outlook()
    expected = None if outlook is None else outlook.expected(card.cls, card.sampling.max_tokens)
    gateway.load.count_accepted(card.model)
    if seat is not None:
        seat.published, seat.index_in = True, incarnation
    try:
        watcher = None if seat is None else gateway.hub.gateway_id
        record = (await gateway.store.enqueue(card, watcher, incarnation)).record
        if record.outcome is Outcome.CANCELLED and card.fingerprint:
            # Another try with its key was not confirmed meanwhile, and withdrew what it took for its own.
            gateway.spans.not_queued(card.id)
            _forget(gateway, seat)
            raise from_qlm(BrokerUnavailableError("another try of this request was withdrawn meanwhile"))
        if seat is not None:
            seat.indexed, seat.index_in = True, None
    except (StoreUnavailableError, StoreEmptiedError) as error:
        # The queue has it, so it will be served. Whoever pulls it indexes it; we ask again as we poll.
        gateway.load.expect_unknown()
        _log.warning(
            "request %s is queued but not indexed yet: %s", card.id, error, extra={"request_id": card.id}
        )
    gateway.metrics.accepted(card, kind, (gateway.clock.now_ns() - card.arrival_ns) / 1e9)
    if expected is not None:
        gateway.metrics.predicted(card, expected)
        if seat is not None:
            seat.predicted_s = expected.completion.mean
    if seat is None:
        gateway.spans.left(card.id, gateway.clock.now_ns())  # nobody here hears of its end


async def _confirmed(gateway: Gateway, request: Request) -> None:
    try:
        async with asyncio.timeout(gateway.limits.publish_timeout_s):
            await gateway.broker.publish(request.cls.queue, encode_request(request))
    except TimeoutError as error:
        seconds = gateway.limits.publish_timeout_s
        raise BrokerUnavailableError(f"no confirmation within {seconds:g} s") from error


async def _withdraw(gateway: Gateway, card: RequestCard) -> None:
    """Make sure, if that can be, that a message which was stored all the same is dropped when met.

    Of a request with an Idempotency-Key another try may have been accepted meanwhile: that one stays.
    """
    try:
        async with asyncio.timeout(_WITHDRAW_TIMEOUT_S):
            if not await gateway.store.withdraw(card) and not card.fingerprint:
                await gateway.store.cancel(card.id, Outcome.CANCELLED)
    except (StoreUnavailableError, TimeoutError) as error:
        _log.warning(
            "request %s was not confirmed; if the queue has it, it will run unseen: %s",
            *(card.id, error),
            extra={"request_id": card.id},
        )


def _forget(gateway: Gateway, seat: Seat | None) -> None:
    if seat is not None:
        gateway.hub.drop(seat)


async def _find(
    gateway: Gateway, tenant_name: str, key: str, digest: str
) -> tuple[RequestId, RequestRecord | None]:
    """Find the request of an Idempotency-Key, or the id that a new one gets.

    A request that ended without an answer, in a way that makes a retry worthwhile, is tried anew.
    """
    for attempt in range(ATTEMPTS_MAX):
        id = keyed_id(tenant_name, key, attempt)
        record = await gateway.store.record(id)
        if record is None:
            return id, None
        _check_body(key, record.card, digest)
        outcome = record.outcome
        if outcome is None or outcome.ok or outcome is Outcome.FAILED:
            return id, record
    raise ApiError(
        status=409,
        message=f"{KEY_HEADER} {key!r} was tried {ATTEMPTS_MAX} times without an answer; expected a new key",
        kind="conflict_error",
        param=KEY_HEADER,
        code="idempotency_key_exhausted",
    )


def _check_body(key: str, card: RequestCard, digest: str) -> None:
    if card.fingerprint != digest:
        message = f"{KEY_HEADER} is {shown(key)}, which came before with another body; expected a new key"
        raise ApiError(status=422, message=message, param=KEY_HEADER, code="idempotency_key_reused")


def _checked(key: str) -> str:
    if not 1 <= len(key) <= KEY_CHARACTERS_MAX:
        raise invalid(
            KEY_HEADER, f"{KEY_HEADER} has {len(key)} characters; expected 1 to {KEY_CHARACTERS_MAX}"
        )
    return key


async def _encode(gateway: Gateway, body: Body, served: ServedModel) -> TokenIds:
    """Tokenize the prompt, on a thread if it is long."""
    if isinstance(body, ChatBody):
        messages = chat_messages(body.messages)
        if sum(len(each.content) for each in messages) <= gateway.limits.encode_inline_chars:
            return served.tokenizer.encode_chat(messages)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(gateway.encoders, served.tokenizer.encode_chat, messages)
    prompt = body.prompt
    if not isinstance(prompt, str):
        return tuple(id for id in prompt if isinstance(id, int))
    if len(prompt) <= gateway.limits.encode_inline_chars:
        return served.tokenizer.encode(prompt)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(gateway.encoders, served.tokenizer.encode, prompt)


def _refused(verdict: Refuse) -> ApiError:
    return ApiError(
        status=verdict.status,
        message=verdict.message,
        kind="rate_limit_error" if verdict.status == 429 else "server_error",
        code=verdict.reason,
        headers=retry_headers(verdict.retry_after_s) | {"x-llm-d-request-dropped-reason": verdict.reason},
    )
