"""Events of a streamed response, as bytes.

Their sequence numbers are a function of the request and its output log, so that a stream can be continued
anywhere. Plain text comes in pieces as it is generated: there, the number of an event grows with the output
tokens shown, and numbers between two events are left out. Derendered deltas have fixed pieces.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import orjson

from qlm.domain.attainment import UNDECIDED, Attainment
from qlm.domain.outcome import Outcome
from qlm.domain.request import RequestMetadata
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.event_shape import Logprobs
from qlm.gateway.api.fields.responses_api import OutputItem
from qlm.gateway.api.lateness import lateness
from qlm.gateway.api.responses_api.objects import Scores, ended_status, response_object, response_usage
from qlm.gateway.api.responses_api.open_items import OpenCall, OpenText
from qlm.gateway.api.responses_api.state import ResponseState
from qlm.gateway.core.session_events import SendFinal

_BEFORE_TEXT: Final = 4
"""Events before the first text: created, in progress, the item, and its part."""

_LAST: Final = {"completed": "response.completed", "incomplete": "response.incomplete"}
_OUTCOMES: Final = frozenset(map(str, Outcome))


class ResponseEvents:
    """Formats the events of one streamed response."""

    def __init__(
        self,
        metadata: RequestMetadata,
        state: ResponseState,
        tier: str,
        *,
        after: int = -1,
        text_before: str = "",
        tokens_before: int = 0,
        comments: bool = True,
    ) -> None:
        """Prepare a stream.

        Args:
            metadata: The request.
            state: What the response shows of its body.
            tier: Its service tier.
            after: Sequence number up to which the client has the events.
            text_before: Text that the client has been shown and does not come again.
            tokens_before: Tokens of that text, whose log probabilities come again, and are not sent again.
            comments: Write comments while nothing else comes.
        """
        self._metadata = metadata
        self._state = state
        self._names = state.tool_names
        self._tier = tier
        self._after = after
        self._text_before = text_before
        self._scored = 0
        self._tokens_before = tokens_before
        self._unsent: list[Mapping[str, Any]] = []
        self._unlisted: list[Mapping[str, Any]] = []
        self._comments = comments
        self._number = 0
        self._items: list[OutputItem] = []
        self._open: OpenText | OpenCall | None = None
        self._progressed = False

    @property
    def _before_text(self) -> int:
        return _BEFORE_TEXT + self._state.background

    def shown_at(self, number: int) -> int:
        """Return the output tokens that a client has been shown with the event of a number."""
        return max(0, number - self._before_text + 1)

    def opening(self) -> bytes:
        """Return the events that come at once."""
        if not self._state.background:
            return self._response("response.created", "in_progress")
        return self._response("response.created", "queued") + self._response("response.queued", "queued")

    def role(self) -> bytes:
        """Return nothing: what comes before text is part of the event."""
        return b""

    def keep_alive(self) -> bytes:
        """Return a comment, unless the client wants none."""
        return b": keep-alive\n\n" if self._comments else b""

    def text(self, offset: int, text: str, logprobs: Logprobs = None) -> bytes:
        """Return an event with text."""
        return self.delta(offset, {"content": text}, logprobs)

    def delta(self, offset: int, fields: Mapping[str, Any], logprobs: Logprobs = None) -> bytes:
        """Return the events of a delta of a chat."""
        made = self._progress()
        self._take(logprobs)
        if reasoning := fields.get("reasoning"):
            made += self._text("reasoning", reasoning, offset)
        if content := fields.get("content"):
            made += self._text("message", content, offset)
        for call in fields.get("tool_calls", ()):
            made += self._call(call)
        return made

    def ending(self, final: SendFinal, logprobs: Logprobs = None) -> bytes:
        """Return the last events of a plain text."""
        return self.derendered_end(final, {"content": final.text}, final.finish_reason, logprobs)

    def derendered_end(
        self,
        final: SendFinal,
        fields: Mapping[str, Any],
        finish_reason: str | None,
        logprobs: Logprobs = None,
    ) -> bytes:
        """Return the last events of an answer that ended well, with its last delta."""
        made = self.delta(final.offset + 1, fields, logprobs)
        status = ended_status(final)
        if self._open is None and (self._text_before or not self._items):
            made += self._begin(OpenText(self._metadata.id, "message", len(self._items)))
        self._number = max(self._number, self._before_text + final.offset + 1)
        made += self._end_item(status)
        usage = response_usage(self._metadata, final)
        return made + self._response(_LAST[status], status, final.attainment, usage=usage)

    def error(self, offset: int, error: ApiError, attainment: Attainment = UNDECIDED) -> bytes:
        """Return the last event of a response that ended badly, or that cannot be shown now."""
        self._number = max(self._number, self._before_text + offset + 1)
        if error.code == Outcome.OUTPUT_LOST or error.code not in _OUTCOMES:
            # Of what the client has, not all was read again.
            self._number = max(self._number, self._after + 1)
        if error.code not in _OUTCOMES:
            return self._event("error", {"code": error.code, "message": error.message, "param": error.param})
        status = "cancelled" if error.code == Outcome.CANCELLED else "failed"
        return self._response("response.failed", status, attainment, error=error)

    def _progress(self) -> bytes:
        if self._progressed:
            return b""
        self._progressed = True
        return self._response("response.in_progress", "in_progress")

    def _take(self, logprobs: Logprobs) -> None:
        """Keep log probabilities until there is text to go with."""
        for each in [] if logprobs is None else cast("Scores", logprobs["content"]):
            self._unlisted.append(each)
            if self._scored >= self._tokens_before:
                self._unsent.append(each)
            self._scored += 1

    def _text(self, kind: str, text: str, offset: int) -> bytes:
        made = b""
        if not (isinstance(self._open, OpenText) and self._open.kind == kind):
            made = self._end_item("completed") + self._begin(
                OpenText(self._metadata.id, kind, len(self._items))
            )
        assert isinstance(self._open, OpenText)
        # The text of an event ends at a token, whatever events came before.
        self._number = max(self._number, self._before_text + offset - 1)
        unsent: Scores = ()
        if kind == "message":
            self._list_scores(self._open)
            unsent, self._unsent = self._unsent, []
        return made + self._events(self._open.more(text, unsent))

    def _list_scores(self, opened: OpenText) -> None:
        opened.logprobs += self._unlisted
        self._unlisted = []

    def _call(self, call: Mapping[str, Any]) -> bytes:
        made, called = b"", call.get("function") or {}
        if not (isinstance(self._open, OpenCall) and self._open.call == call.get("index", 0)):
            opened = OpenCall(
                self._metadata.id,
                len(self._items),
                *(call.get("index", 0), call.get("id", ""), self._names.of_call(called.get("name", ""))),
            )
            made = self._end_item("completed") + self._begin(opened)
        assert isinstance(self._open, OpenCall)
        if arguments := called.get("arguments"):
            made += self._events(self._open.more(arguments))
        return made

    def _begin(self, opened: OpenText | OpenCall) -> bytes:
        self._open = opened
        made = self._events(opened.begin())
        if isinstance(opened, OpenText):
            opened.text, self._text_before = self._text_before, ""
        return made

    def _end_item(self, status: str) -> bytes:
        if self._open is None:
            return b""
        if isinstance(self._open, OpenText) and self._open.kind == "message":
            self._list_scores(self._open)
        made = self._events(self._open.end(status))
        self._items.append(self._open.item(status))
        self._open = None
        return made

    def _response(self, kind: str, status: str, attainment: Attainment = UNDECIDED, **parts: Any) -> bytes:
        response = response_object(
            self._metadata, self._state, self._tier, status, output=self._items, **parts
        )
        late = lateness(attainment)
        return self._event(kind, {"response": response} | ({} if late is None else {"qlm": late}))

    def _events(self, events: Sequence[tuple[str, Mapping[str, Any]]]) -> bytes:
        return b"".join([self._event(kind, fields) for kind, fields in events])

    def _event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        number, self._number = self._number, self._number + 1
        if number <= self._after:
            return b""
        data = {"type": kind, "sequence_number": number, **fields}
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), orjson.dumps(data))
