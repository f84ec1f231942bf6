"""Items of a streamed response while their text or arguments come, as events without their numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from qlm.domain.ids import RequestId
from qlm.gateway.api.fields.responses_api import OutputItem
from qlm.gateway.api.responses_api.objects import (
    Scores,
    call_item,
    item_id,
    message_item,
    reasoning_item,
    text_part,
)

Events = Sequence[tuple[str, Mapping[str, Any]]]
"""Type and fields of events."""


class OpenText:
    """A message or reasoning whose text comes.

    Attributes:
        kind: `message` or `reasoning`.
        text: The text so far.
        logprobs: Log probabilities of its tokens so far.
    """

    def __init__(self, id: RequestId, kind: str, index: int) -> None:
        self.kind = kind
        self.text = ""
        self.logprobs: list[Mapping[str, Any]] = []
        self._id = item_id(id, kind, index)
        self._index = index

    def begin(self) -> Events:
        """Return the events before the first text."""
        added = {"output_index": self._index, "item": self._item([], "in_progress")}
        return [
            ("response.output_item.added", added),
            ("response.content_part.added", {**self._place, "part": self._part()}),
        ]

    def more(self, text: str, logprobs: Scores = ()) -> Events:
        """Add text, with the log probabilities that come with it."""
        self.text += text
        return [(f"{self._of_text}.delta", {**self._place, "delta": text, **self._scored(logprobs)})]

    def end(self, status: str) -> Events:
        """Return the events after the last text."""
        done = {"output_index": self._index, "item": self.item(status)}
        return [
            (f"{self._of_text}.done", {**self._place, "text": self.text, **self._scored(self.logprobs)}),
            ("response.content_part.done", {**self._place, "part": self._part()}),
            ("response.output_item.done", done),
        ]

    def item(self, status: str) -> OutputItem:
        """Return the item with its text so far."""
        return self._item([self._part()], status)

    @property
    def _of_text(self) -> str:
        return "response.output_text" if self.kind == "message" else "response.reasoning_text"

    def _scored(self, logprobs: Scores) -> dict[str, Any]:
        return {"logprobs": list(map(_of_event, logprobs))} if self.kind == "message" else {}

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}

    def _part(self) -> dict[str, Any]:
        return (
            text_part(self.text, self.logprobs)
            if self.kind == "message"
            else {"type": "reasoning_text", "text": self.text}
        )

    def _item(self, parts: Sequence[Mapping[str, Any]], status: str) -> OutputItem:
        if self.kind == "message":
            return message_item(self._id, parts, status)
        return reasoning_item(self._id, self.text, status)


def _of_event(scored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return log probabilities as events have them: without bytes."""
    top = [{name: each[name] for name in ("token", "logprob")} for each in scored["top_logprobs"]]
    return {"token": scored["token"], "logprob": scored["logprob"], "top_logprobs": top}


class OpenCall:
    """A tool call whose arguments come.

    Attributes:
        call: Number of the call in the answer.
    """

    def __init__(self, id: RequestId, index: int, call: int, call_id: str, name: Mapping[str, str]) -> None:
        self.call = call
        self._id = item_id(id, "function_call", index)
        self._index = index
        self._call_id = call_id
        self._name = name
        self._arguments = ""

    def begin(self) -> Events:
        """Return the event before the first arguments."""
        added = {"output_index": self._index, "item": self.item("in_progress")}
        return [("response.output_item.added", added)]

    def more(self, arguments: str) -> Events:
        """Add a piece of the arguments."""
        self._arguments += arguments
        return [("response.function_call_arguments.delta", {**self._place, "delta": arguments})]

    def end(self, status: str) -> Events:
        """Return the events after the last arguments."""
        done = {**self._place, "name": self._name["name"], "arguments": self._arguments}
        item = {"output_index": self._index, "item": self.item(status)}
        return [("response.function_call_arguments.done", done), ("response.output_item.done", item)]

    def item(self, status: str) -> OutputItem:
        """Return the item with its arguments so far."""
        return call_item(self._id, self._call_id, self._name, self._arguments, status)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index}
