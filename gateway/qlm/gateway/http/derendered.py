"""Answers whose messages the render tier makes: whole, and as a stream."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from qlm.domain.formats.token_logprobs import TokenLogprob
from qlm.domain.ids import TokenIds
from qlm.domain.request import RequestMetadata
from qlm.gateway.api.errors import ApiError, from_outcome, unavailable
from qlm.gateway.api.event_shape import EventShape, Scored
from qlm.gateway.api.fields.openai import ChatCompletion, TextCompletion
from qlm.gateway.api.objective import tier_of
from qlm.gateway.api.openai_shapes import answer_object, chat_object
from qlm.gateway.core.logprobs.answer import AnswerLogprobs, answer_logprobs
from qlm.gateway.core.logprobs.prompt import prompt_logprobs
from qlm.gateway.core.session_events import SendEvent, SendFinal
from qlm.gateway.core.tokenizer import Tokenizer
from qlm.gateway.http.sinks import Buffered, StreamSink
from qlm.gateway.render.before_stop import BeforeStop, before_stop
from qlm.gateway.render.client import UNAVAILABLE, RenderClient
from qlm.gateway.render.derendering import Deltas, Derendered, piece_end, whole_message
from qlm.gateway.render.patience import PATIENCE_S, Patience, patiently
from qlm.gateway.sessions.gateway import Gateway


def is_replayed(metadata: RequestMetadata) -> bool:
    """Return whether what a stream sends depends on the tokens that its client has been shown before."""
    return is_derendered(metadata) or metadata.extensions.logprobs is not None


def is_derendered(metadata: RequestMetadata) -> bool:
    """Return whether the render tier makes the message."""
    return metadata.extensions.render_state is not None


def sink_of(
    gateway: Gateway, metadata: RequestMetadata, shape: EventShape, shown: int, *, repeatable: bool = True
) -> "StreamSink | DerenderedSink":
    """Return the sink of a stream.

    Args:
        gateway: The gateway.
        metadata: The request.
        shape: Form of its events.
        shown: Output tokens that the client has already.
        repeatable: The client may resume the stream, so the same events must come at any gateway.

    Raises:
        ApiError: The model has no render tier here, and the answer needs one.
    """
    tokenizer = gateway.models.named(metadata.model).tokenizer
    logprobs = answer_logprobs(metadata, tokenizer)
    if not is_derendered(metadata):
        return StreamSink(shape, shown, logprobs, metadata.answer.echo_text)
    deltas = Deltas(_client(gateway, metadata), metadata)
    stops = BeforeStop(metadata, tokenizer) if metadata.answer.stop else None
    return DerenderedSink(shape, deltas, shown, logprobs=logprobs, stops=stops, repeatable=repeatable)


async def answer_of(
    gateway: Gateway, metadata: RequestMetadata, final: SendFinal
) -> ChatCompletion | TextCompletion:
    """Return the whole answer of a request that ended well.

    Raises:
        ApiError: The render tier of its model fails, is away, or is not known here.
    """
    tier = tier_of(metadata.slo, gateway.limits)
    fingerprint = gateway.models.fingerprint(metadata.answers_as)
    tokenizer = gateway.models.named(metadata.model).tokenizer
    if final.prompt_logprobs.is_long:  # other streams go on meanwhile
        scored = await asyncio.to_thread(_scored, metadata, final, tokenizer)
    else:
        scored = _scored(metadata, final, tokenizer)
    if not is_derendered(metadata):
        return answer_object(metadata, final, tier, fingerprint, scored)
    read = final
    if isinstance(final.stop_reason, str):
        ids = await asyncio.to_thread(before_stop, metadata, tokenizer, final.token_ids)
        read = replace(final, token_ids=ids)
    message = await patiently(partial(whole_message, _client(gateway, metadata), metadata, read))
    fields, reason = message.fields, message.finish_reason
    return chat_object(metadata, final, tier, fingerprint, fields, reason, scored)


def _scored(metadata: RequestMetadata, final: SendFinal, tokenizer: Tokenizer) -> Scored:
    begun, prompt, asked = answer_logprobs(metadata, tokenizer), final.prompt_logprobs, metadata.extensions
    return Scored(
        answer=None if begun is None else begun.take(final.token_ids, final.logprobs, prompt=prompt),
        prompt=None if asked.prompt_logprobs is None else prompt_logprobs(tokenizer, prompt),
    )


def _client(gateway: Gateway, metadata: RequestMetadata) -> RenderClient:
    if (tier := gateway.render_tiers.get(metadata.model)) is None:
        raise unavailable(f"this gateway has no render tier of {metadata.model}", UNAVAILABLE)
    return tier.client


class DerenderedSink(Buffered):
    """Buffers the tokens of a stream, and derenders them when its response takes them.

    Pieces of the output log that the client has been shown are derendered again without being sent: that
    brings the parsers into the state in which they were. The pieces of a repeatable stream depend on the log
    alone; others are what has come when the tier is free, so that they grow while it is busy.
    """

    def __init__(
        self,
        shape: EventShape,
        deltas: Deltas,
        shown: int,
        *,
        patience_s: float = PATIENCE_S,
        logprobs: AnswerLogprobs | None = None,
        stops: BeforeStop | None = None,
        repeatable: bool = True,
    ) -> None:
        """Begin a stream to a client that already has `shown` output tokens, which come again."""
        super().__init__()
        self._shape = shape
        self._deltas = deltas
        self._patience = Patience(patience_s)
        self._shown = shown
        self._repeatable = repeatable or shown > 0
        self._ids: list[int] = []
        self._stops = stops
        self._readable = self._ids if stops is None else []
        self._rest: TokenIds = ()
        self._logprobs = logprobs
        self._scores: list[TokenLogprob] = []
        self._final: SendFinal | None = None
        self._comments = False

    def event(self, event: SendEvent) -> None:
        """Add tokens."""
        self._add(event.token_ids)
        self._scores += event.logprobs
        self._ready.set()

    def keep_alive(self) -> None:
        """Add a comment."""
        self._comments = True
        self._ready.set()

    def final(self, final: SendFinal) -> None:
        """Add the last tokens and the end."""
        self._add(final.token_ids)
        if self._stops is not None:
            self._readable += self._stops.end()
            self._rest = self._stops.rest
        self._scores += final.logprobs
        self._final = final
        self._ready.set()

    async def take(self) -> bytes:
        """Wait for bytes and return them; empty at the end of the stream."""
        while not self._closed:
            # Comments go between pieces: a stream that catches up, or whose tier is away, is kept alive.
            if self._comments:
                self._comments = False
                if comment := self._shape.keep_alive():
                    return comment
            if self._piece() is not None:
                if frame := await self._frame():
                    return frame
            else:
                self._ready.clear()
                await self._ready.wait()
        return b""

    def _add(self, ids: TokenIds) -> None:
        self._ids += ids
        if self._stops is not None:
            self._readable += self._stops.take(ids)

    def _piece(self) -> tuple[TokenIds, SendFinal | None] | None:
        """Return the next piece of the log if it is complete, and the end of the answer if it is the last.

        In a repeatable stream the end has no token, and the pieces do not depend on when their tokens came.
        """
        start, have, final = self._deltas.tokens, len(self._readable), self._final
        end = piece_end(start) if self._repeatable else max(piece_end(start), have)
        if final is None:
            return (tuple(self._readable[start:end]), None) if end <= have else None
        if not final.outcome.ok:
            return (), final
        if self._repeatable and start < have:
            return tuple(self._readable[start:end]), None
        return (*self._readable[start:], *self._rest), final

    async def _derendered(self) -> tuple[Derendered, SendFinal | None]:
        """Derender what is the next piece once it is this stream's turn."""
        async with self._deltas.turns.one(first=not self._deltas.tokens):
            ids, final = self._piece() or ((), None)
            if final is not None and not final.outcome.ok:
                return Derendered({}, None), final
            return await self._deltas.take(ids, None if final is None else final.finish_reason), final

    async def _frame(self) -> bytes:
        try:
            done = await self._patience.attempt(self._derendered)
        except ApiError as error:
            self._closed = self.given_up = True
            return self._shape.error(max(self._deltas.tokens, self._shown), error)
        if done is None:
            return b""
        made, final = done
        if final is not None and not final.outcome.ok:
            self._closed = True
            ended = from_outcome(final.outcome, final.detail)
            return self._shape.error(max(final.offset, self._shown), ended, final.attainment)
        offset = self._deltas.tokens
        if final is not None:
            self._closed = True
            logprobs = self._scored(final.offset)
            return self._shape.derendered_end(final, made.fields, made.finish_reason, logprobs)
        if not made.fields or offset <= self._shown:
            return b""
        return self._shape.delta(offset, made.fields, self._scored(offset))

    def _scored(self, end: int) -> Mapping[str, object] | None:
        """Return the log probabilities of the tokens up to `end` that no event had."""
        if self._logprobs is None or (start := self._logprobs.taken) >= end:
            return None
        skip = max(0, self._shown - start)
        return self._logprobs.take(tuple(self._ids[start:end]), self._scores[start:end], skip=skip)
