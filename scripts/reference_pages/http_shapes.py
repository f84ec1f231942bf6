"""Titles and places of the shapes of answers, and the parts of pages that describe them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from qlm.gateway.api.fields import (
    dead,
    files,
    forecast,
    history,
    instances,
    keys,
    messages_api,
    openai,
    queues,
    requests,
    responses_api,
    service,
    tokens,
)
from scripts.reference_pages.answer_fields import bases, fragment, part

CLIENT_TITLES: Final[Mapping[Any, str]] = {
    openai.ChatCompletion: "Chat completion",
    openai.TextCompletion: "Text completion",
    openai.ChatChunk: "Chat event",
    openai.TextChunk: "Text event",
    requests.AcceptedRequest: "Accepted request",
    requests.RequestStatus: "Request status",
    requests.RequestAnswer: "Request",
    requests.DeletedRequest: "Deleted request",
    responses_api.ResponseObject: "Response",
    responses_api.OutputItem: "Output item",
    responses_api.ItemPart: "Part of an item",
    responses_api.ResponseEvent: "Response event",
    responses_api.InputItemList: "Input items",
    responses_api.InputItem: "Input item",
    responses_api.DeletedResponse: "Deleted response",
    messages_api.MessageObject: "Message",
    messages_api.ContentBlock: "Content block",
    messages_api.MessageUsage: "Token counts of a message",
    messages_api.MessageEvent: "Message event",
    messages_api.TokenCount: "Token count",
    messages_api.MessageErrorAnswer: "Error of a message",
    openai.Model: "Model",
    openai.ModelList: "Models",
    files.FileFields: "File",
    files.FileList: "Files",
    files.DeletedFile: "Deleted file",
    files.BatchFields: "Batch",
    files.BatchList: "Batches",
    service.Health: "Health",
    service.Readiness: "Readiness",
    tokens.Tokenized: "Tokens",
    tokens.Detokenized: "Text of tokens",
    service.Version: "Version",
    service.ApiDocument: "Document of the API",
    openai.ErrorFields: "Error",
}
"""Titles of shapes that the page for clients describes."""

ADMIN_TITLES: Final[Mapping[Any, str]] = {
    queues.Queues: "Queues",
    queues.GroupFields: "Group",
    queues.Groups: "Groups",
    requests.AdminRequest: "Request in full",
    requests.Requests: "Requests",
    requests.RequestDetails: "Request with its place",
    queues.PublishedPlan: "Plan",
    forecast.Forecast: "Forecast",
    forecast.Normal: "Uncertain time",
    forecast.Drain: "Drain",
    queues.Clusters: "Clusters",
    history.StoredHistory: "History",
    queues.Leadership: "Controller",
    service.StoreSettings: "Shared state",
    service.Listeners: "Listeners",
    instances.Instances: "Instances",
    instances.Draining: "Draining",
    dead.DeadLetters: "Dead letters",
    dead.ResolvedLetters: "Resolved dead letters",
    dead.ResolvedCounts: "Resolved dead letters in numbers",
    files.AdminBatch: "Batch of a tenant",
    files.AdminBatchList: "Batches of all tenants",
    keys.NewKey: "New API key",
    keys.KeyFields: "API key",
    keys.KeyList: "API keys",
    keys.RevokedKey: "Revoked API key",
}
"""Titles of shapes that the page for operators describes."""

AFTER: Final[Mapping[Any, tuple[Any, ...]]] = {
    queues.Queues: (queues.GroupFields,),
    requests.Requests: (requests.AdminRequest,),
    forecast.Forecast: (forecast.Normal, forecast.Drain),
    messages_api.MessageObject: (
        messages_api.ContentBlock,
        messages_api.MessageUsage,
        messages_api.MessageErrorAnswer,
    ),
    responses_api.ResponseObject: (responses_api.OutputItem, responses_api.ItemPart),
    responses_api.InputItemList: (responses_api.InputItem,),
}
"""Shapes inside others that are described once, behind them."""


def client_places() -> Mapping[type, str]:
    """Links on the page for clients."""
    return {shape: f"[{title}]({fragment(title)})" for shape, title in CLIENT_TITLES.items()}


def admin_places() -> Mapping[type, str]:
    """Links on the page for operators."""
    elsewhere = {shape: f"[{title}](http.md{fragment(title)})" for shape, title in CLIENT_TITLES.items()}
    return elsewhere | {shape: f"[{title}]({fragment(title)})" for shape, title in ADMIN_TITLES.items()}


class ShapeParts:
    """Describes each shape once, behind the first route that answers with it."""

    def __init__(self, titles: Mapping[Any, str], places: Mapping[type, str]) -> None:
        """Describe the shapes of one page."""
        self._titles = titles
        self._places = places
        self._done: set[Any] = set()

    def of(self, shape: Any) -> Iterator[str]:
        """Describe a shape, after those that it begins with, unless that is done."""
        if shape in self._done or shape not in self._titles:
            return
        self._done.add(shape)
        for base in bases(shape):
            yield from self.of(base)
        yield part(shape, self._titles[shape], self._places)
        for inner in AFTER.get(shape, ()):
            yield from self.of(inner)
