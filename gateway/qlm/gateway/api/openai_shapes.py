"""OpenAI's answer shapes: objects, stream chunks and server-sent events, as bytes."""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final, cast

import orjson

from qlm.domain.attainment import UNDECIDED, Attainment
from qlm.domain.request import AnswerKind, RequestMetadata
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.event_shape import NOT_SCORED, FamilyEnd, Logprobs, Scored
from qlm.gateway.api.fields.openai import (
    AnswerMessage,
    ChatCompletion,
    ChatLogprobs,
    Lateness,
    PromptScores,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    Usage,
)
from qlm.gateway.api.ids import CHAT_PREFIX, TEXT_PREFIX, first_id
from qlm.gateway.api.lateness import lateness
from qlm.gateway.core.session_events import SendFinal

DONE: Final = b"data: [DONE]\n\n"
"""Ends each stream."""

_KEEP_ALIVE: Final = b": keep-alive\n\n"
_KEEP_ALIVE_INSIDE: Final = b": keep-alive\n"
_NS_PER_S: Final = 1_000_000_000


def answer_id(metadata: RequestMetadata) -> str:
    """Return the id of the answer object."""
    prefix = CHAT_PREFIX if metadata.answer.kind is AnswerKind.CHAT else TEXT_PREFIX
    return f"{prefix}{first_id(metadata.id)}"


def usage(
    metadata: RequestMetadata,
    completion_tokens: int,
    cached_tokens: int | None = None,
    late: Lateness | None = None,
) -> Usage:
    """Return token counts, stop tokens included, as vLLM counts; at the end of a stream with its lateness."""
    counts: Usage = {
        "prompt_tokens": metadata.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": metadata.prompt_tokens + completion_tokens,
    }
    if cached_tokens is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    if late is not None:
        counts["qlm"] = late
    return counts


def answer_object(
    metadata: RequestMetadata,
    final: SendFinal,
    tier: str,
    fingerprint: str | None = None,
    scored: Scored = NOT_SCORED,
) -> ChatCompletion | TextCompletion:
    """Return the whole answer of a request that ended well; `fingerprint` is that of its model."""
    if metadata.answer.kind is AnswerKind.CHAT:
        message = {"content": final.text}
        return chat_object(metadata, final, tier, fingerprint, message, final.finish_reason, scored)
    return _text(metadata, final, tier, fingerprint, scored)


def chat_object(
    metadata: RequestMetadata,
    final: SendFinal,
    tier: str,
    fingerprint: str | None,
    message: Mapping[str, object],
    finish_reason: str | None,
    scored: Scored = NOT_SCORED,
) -> ChatCompletion:
    """Return the whole answer to a conversation, with the fields of its message."""
    fields = {"role": "assistant", **message, "refusal": None}
    answer: ChatCompletion = {
        "id": answer_id(metadata),
        "object": "chat.completion",
        "created": metadata.arrival_ns // _NS_PER_S,
        "model": metadata.answers_as,
        "choices": [
            {
                "index": metadata.extensions.choice or 0,
                "message": cast("AnswerMessage", fields),
                "logprobs": cast("ChatLogprobs | None", scored.answer),
                "finish_reason": finish_reason,
                "stop_reason": final.stop_reason,
            }
        ],
        "usage": usage(metadata, final.offset, final.cached_tokens),
        "service_tier": tier,
        "system_fingerprint": fingerprint,
    }
    if scored.prompt is not None:
        answer["prompt_logprobs"] = cast("PromptScores | None", scored.prompt or None)
    return answer


def _text(
    metadata: RequestMetadata,
    final: SendFinal,
    tier: str,
    fingerprint: str | None,
    scored: Scored,
) -> TextCompletion:
    choice: TextChoice = {
        "index": metadata.extensions.choice or 0,
        "text": metadata.answer.echo_text + final.text,
        "logprobs": cast("TextLogprobs | None", scored.answer),
        "finish_reason": final.finish_reason,
        "stop_reason": final.stop_reason,
    }
    if scored.prompt is not None:
        choice["prompt_logprobs"] = cast("PromptScores | None", scored.prompt or None)
    return {
        "id": answer_id(metadata),
        "object": "text_completion",
        "created": metadata.arrival_ns // _NS_PER_S,
        "model": metadata.answers_as,
        "choices": [choice],
        "usage": usage(metadata, final.offset, final.cached_tokens),
        "service_tier": tier,
        "system_fingerprint": fingerprint,
    }


def first_of_each_prompt(family: Sequence[RequestMetadata]) -> Sequence[int]:
    """Return the places of the first answer to each prompt among the answers to one request."""
    extensions = family[0].extensions
    per_prompt = (extensions.choices or 1) // (extensions.prompts or 1)
    places: dict[int, int] = {}
    for place, each in enumerate(family):
        places.setdefault((each.extensions.choice or 0) // per_prompt, place)
    return tuple(places.values())


def family_usage(answers: Sequence[tuple[RequestMetadata, SendFinal]]) -> Usage:
    """Return the token counts of all answers to one request; each prompt counts once, as in vLLM."""
    first_answers = [answers[place] for place in first_of_each_prompt([each for each, _ in answers])]
    prompt_tokens = sum(each.prompt_tokens for each, _ in first_answers)
    completion_tokens = sum(final.offset for _, final in answers)
    counts: Usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    cached = [final.cached_tokens for _, final in first_answers if final.cached_tokens is not None]
    if len(cached) == len(first_answers):
        counts["prompt_tokens_details"] = {"cached_tokens": sum(cached)}
    return counts


class StreamForm(Enum):
    """Lines of a stream besides those with data."""

    STANDARD = auto()
    """A comment while nothing comes, so that no proxy takes the connection for dead."""
    RESUMABLE = auto()
    """The same, and the position of each event (`id:`), from which the stream can be resumed."""
    PLAIN = auto()
    """None, for clients that read data lines only."""


class StreamShape:
    """Formats the events of one stream.

    The constant parts are formatted once, so an event costs one string to escape.
    """

    def __init__(
        self,
        metadata: RequestMetadata,
        tier: str,
        *,
        fingerprint: str | None = None,
        form: StreamForm = StreamForm.STANDARD,
        include_usage: bool = False,
        continuous_usage: bool = False,
        family: FamilyEnd | None = None,
    ) -> None:
        """Prepare a stream.

        Args:
            metadata: The request.
            tier: Its service tier.
            fingerprint: That of its model.
            form: Which lines it has.
            include_usage: End with an event that has the usage and no choices.
            continuous_usage: Write the usage so far in each event (vLLM's extension).
            family: Gets the end of an answer that is one of several in the stream; they end it together.
        """
        self._metadata = metadata
        self._chat = metadata.answer.kind is AnswerKind.CHAT
        self._form = form
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._id_seen = False
        self._family = family
        self._index = metadata.extensions.choice or 0
        head = {
            "id": answer_id(metadata),
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": metadata.arrival_ns // _NS_PER_S,
            "model": metadata.answers_as,
            "service_tier": tier,
            "system_fingerprint": fingerprint,
        }
        # The bytes of an event up to the value of "choices".
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":'
        text_field = b'"delta":{"content":' if self._chat else b'"text":'
        self._choice = self._head + b'[{"index":%d,' % self._index
        self._before_text = self._choice + text_field
        # What follows the text of an event without log probabilities; None if its usage grows.
        closing = (b"}" if self._chat else b"") + b',"logprobs":null,"finish_reason":null}]'
        no_usage = b',"usage":null' if include_usage else b""
        self._after_text = None if continuous_usage else closing + no_usage + b"}\n\n"

    def role(self) -> bytes:
        """Return the first event of a chat stream; nothing for completions, and for several answers."""
        return b"" if self._family is not None else self.opening()

    def opening(self) -> bytes:
        """Return the first event of an answer, which of several come first; nothing for completions."""
        if not self._chat:
            return b""
        delta = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return self._event(0, self._choice + delta)

    def text(self, offset: int, text: str, logprobs: Logprobs = None) -> bytes:
        """Return an event with text, and the log probabilities of its tokens if there are any."""
        if logprobs is not None or self._after_text is None:
            return self._event(offset, self._text(text, None, logprobs))
        frame = self._before_text + orjson.dumps(text) + self._after_text
        return frame if self._form is not StreamForm.RESUMABLE else self._id(offset) + frame

    def _text(self, text: str, final: SendFinal | None, logprobs: Logprobs) -> bytes:
        closing = b"}" if self._chat else b""
        reasons = b"null" if final is None else _reasons(final)
        scores = b',"logprobs":null' if logprobs is None else _logprobs(logprobs)
        whole = orjson.dumps(text) + closing + scores + b',"finish_reason":' + reasons + b"}]"
        return self._before_text + whole

    def ending(self, final: SendFinal, logprobs: Logprobs = None) -> bytes:
        """Return the last events of a stream that ended well; they say whether it was late."""
        if self._chat and not final.text:
            body = self._choice + b'"delta":{}' + _logprobs(logprobs)
            body += b',"finish_reason":' + _reasons(final) + b"}]"
        else:
            body = self._text(final.text, final, logprobs)
        return self._last(final, body)

    def delta(self, offset: int, fields: Mapping[str, object], logprobs: Logprobs = None) -> bytes:
        """Return an event with the fields of a derendered delta."""
        fields = self._without_role(fields)
        choice = {"index": self._index, "delta": fields, "logprobs": logprobs, "finish_reason": None}
        return self._event(offset, self._head + orjson.dumps([choice]))

    def derendered_end(
        self,
        final: SendFinal,
        fields: Mapping[str, object],
        finish_reason: str | None,
        logprobs: Logprobs = None,
    ) -> bytes:
        """Return the last events of a derendered answer that ended well, with its last delta."""
        fields = self._without_role(fields)
        choice = {"index": self._index, "delta": fields, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._last(final, self._head + orjson.dumps([choice | {"stop_reason": final.stop_reason}]))

    def _without_role(self, fields: Mapping[str, object]) -> Mapping[str, object]:
        """Return a delta without the role that `opening` has: SDKs put roles of several deltas together."""
        if self._family is None:
            return fields
        return {name: value for name, value in fields.items() if name != "role"}

    def _last(self, final: SendFinal, body: bytes) -> bytes:
        late = lateness(final.attainment)
        if late is not None:
            body += b',"qlm":' + orjson.dumps(late)
        last = self._event(final.offset, body, late)
        if self._family is not None:
            self._family.ended(self._metadata, final)
            return last
        return last + self.closing(
            final.offset, usage(self._metadata, final.offset, final.cached_tokens, late)
        )

    def closing(self, offset: int, counts: Usage) -> bytes:
        """Return what follows the last answer: the token counts, if they are wanted, and the end."""
        if not self._include_usage:
            return DONE
        return self._close(offset, self._head + b'[],"usage":' + orjson.dumps(counts)) + DONE

    def error(self, offset: int, error: ApiError, attainment: Attainment = UNDECIDED) -> bytes:
        """Return the last events of a stream that ended badly; nothing if another answer has ended it."""
        if self._family is not None:
            if self._family.failed is not None:
                return b""
            self._family.failed = self._index
        late = lateness(attainment)
        data = error.body() if late is None else error.body() | {"qlm": late}
        event = b"event: error\n" + self._id(offset) + b"data: " + orjson.dumps(data) + b"\n\n"
        return event + DONE

    def keep_alive(self) -> bytes:
        """Return a comment, or nothing for a stream with data lines only."""
        if self._form is StreamForm.PLAIN:
            return b""
        # OpenAI's Python client takes each blank line after an `id:` for an event, and fails on its empty
        # data. So after the first `id:` a comment has no blank line of its own, which the format allows.
        return _KEEP_ALIVE_INSIDE if self._id_seen else _KEEP_ALIVE

    def _event(self, offset: int, body: bytes, late: Lateness | None = None) -> bytes:
        if self._continuous_usage:
            body += b',"usage":' + orjson.dumps(usage(self._metadata, offset, late=late))
        elif self._include_usage:
            body += b',"usage":null'
        return self._close(offset, body)

    def _close(self, offset: int, body: bytes) -> bytes:
        return self._id(offset) + body + b"}\n\n"

    def _id(self, offset: int) -> bytes:
        if self._form is not StreamForm.RESUMABLE:
            return b""
        self._id_seen = True
        return b"id: %d\n" % offset


def _logprobs(value: Logprobs) -> bytes:
    return b',"logprobs":null' if value is None else b',"logprobs":' + orjson.dumps(value)


def _reasons(final: SendFinal) -> bytes:
    """Return the value of "finish_reason", and "stop_reason" after it."""
    return orjson.dumps(final.finish_reason) + b',"stop_reason":' + orjson.dumps(final.stop_reason)
