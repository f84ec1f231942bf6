"""Open-loop client: it sends each request when its time has come, however slow the server is."""

import asyncio
import errno
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import aiohttp
import orjson

from qlm.cli.bench.events import Answer, EventParser, message_of
from qlm.cli.bench.patience import PATIENCE_S
from qlm.cli.bench.record import Chunk, Run, Sent
from qlm.cli.bench.schedule import Planned
from qlm.cli.bench.stopping import Stop
from qlm.domain.errors import QlmError

_KEEP_ALIVE_S: Final = 4.0
"""Shorter than the 5 s after which uvicorn closes: a request on a connection being closed would fail."""

_COUNTING_OWNERS: Final = ("qlm", "vllm")
"""Beginnings of `owned_by` of servers that know `continuous_usage_stats`."""

_ERROR_BYTES_MAX: Final = 4096


class Served(NamedTuple):
    """What a server says of itself: a model, and whether it can count tokens in each event."""

    model: str
    counts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """How to send a request.

    Attributes:
        url: Address of the server.
        endpoint: Path of completions or of chat completions.
        model: Name of the model.
        counts: Ask for the usage in each event (`continuous_usage_stats`).
        ignore_eos: Ask for answers of the full length (vLLM's and QLM's extension).
        headers: Further headers.
        extra_body: Further fields of the body.
    """

    url: str
    endpoint: str
    model: str
    counts: bool
    ignore_eos: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chat(self) -> bool:
        """True if the endpoint takes messages."""
        return self.endpoint.rstrip("/").endswith("chat/completions")

    def body(self, prompt: Sequence[int], output_tokens: int) -> bytes:
        """Return the body of a request; token ids become words where the endpoint takes text only."""
        options = {"include_usage": True} | ({"continuous_usage_stats": True} if self.counts else {})
        fields: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "stream_options": options,
            "max_tokens": output_tokens,
        }
        if self.ignore_eos:
            fields["ignore_eos"] = True
        if self.chat:
            text = " ".join(_WORDS[token % len(_WORDS)] for token in prompt)
            fields["messages"] = [{"role": "user", "content": text}]
        else:
            fields["prompt"] = list(prompt)
        return orjson.dumps(fields | dict(self.extra_body))


_WORDS: Final = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world")
"""Words that are one token in almost every vocabulary."""


async def ask_models(url: str, headers: Mapping[str, str], model: str | None, timeout_s: float) -> Served:
    """Ask a server for its models.

    Args:
        url: Address of the server.
        headers: Headers, such as a key.
        model: The wanted model; None for the first.
        timeout_s: Time to wait for the answer.

    Raises:
        QlmError: The server does not answer, or has no model, and none is given.
    """
    where = f"{url}/v1/models"
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=dict(headers)) as session,
            session.get(where) as response,
        ):
            response.raise_for_status()
            listed = orjson.loads(await response.read())["data"]
            found = [each for each in listed if model in (None, each["id"])] or listed
            owner = str(found[0].get("owned_by", ""))
            return Served(model or str(found[0]["id"]), owner.startswith(_COUNTING_OWNERS))
    except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError, LookupError, TypeError) as error:
        if model is not None:
            return Served(model, False)
        cause = str(error) or type(error).__name__
        raise QlmError(f"{where} does not list a model ({cause}); name one with --model") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Clock and callbacks of a run.

    Attributes:
        clock_s: A monotonic clock: that of the event loop.
        on_sent: Called when a request is sent.
        on_end: Called when one has ended.
        stop: Ends the run early.
    """

    clock_s: Callable[[], float]
    on_sent: Callable[[], None] = lambda: None
    on_end: Callable[[], None] = lambda: None
    stop: Stop = field(default_factory=Stop)


async def run_plan(
    target: Target,
    planned: Sequence[Planned],
    prompts: Sequence[Sequence[int]],
    watch: Watch,
    *,
    patience_s: float = PATIENCE_S,
    seed: int | None = None,
) -> Run:
    """Send all requests of a schedule, or those before a stop, and return what came back.

    Args:
        target: How to send.
        planned: The schedule, by arrival.
        prompts: Token ids of each prompt.
        watch: Clock and callbacks.
        patience_s: Time from its scheduled arrival at which an unfinished request is given up.
        seed: Seed of the schedule, for the record.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
    headers = {"content-type": "application/json", **target.headers}
    # Bodies are made beforehand: it takes time that would delay the requests.
    bodies = [target.body(prompt, each.output_tokens) for each, prompt in zip(planned, prompts, strict=True)]
    counting: Counter[str] = Counter()
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        start_s = watch.clock_s()
        call = _Call(session, f"{target.url}{target.endpoint}", watch, start_s, patience_s, counting)
        async with asyncio.TaskGroup() as group:
            tasks = []
            async with watch.stop.sending():
                for each, body in zip(planned, bodies, strict=True):
                    await asyncio.sleep(max(0.0, start_s + each.at_s - watch.clock_s()))
                    asked = each.output_tokens if target.ignore_eos else None
                    tasks.append(group.create_task(call.send(each, body, asked)))
    ways = "; ".join(f"{way} ({count} answers)" for way, count in counting.most_common())
    return Run(
        requests=tuple(task.result() for task in tasks), counting=ways or "no answer to count", seed=seed
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """State that all requests of a run share."""

    session: aiohttp.ClientSession
    url: str
    watch: Watch
    start_s: float
    patience_s: float
    counting: Counter[str]

    def now_s(self) -> float:
        return self.watch.clock_s() - self.start_s

    async def send(self, planned: Planned, body: bytes, asked: int | None) -> Sent:
        """Send a request and receive its answer; a failure is part of the result."""
        answer = Answer()
        self.watch.on_sent()
        sent_s = self.now_s()
        try:
            async with self.watch.stop.answered_by(self.start_s + planned.at_s + self.patience_s):
                error = await self._receive(body, answer)
        except TimeoutError:
            when = "when it was stopped" if self.watch.stop.gives_up else f"after {self.patience_s:g} s"
            error = f"unfinished {when}"
        except (aiohttp.ClientError, OSError) as failure:
            error = f"connection: {_cause(failure)}"
        except Exception as failure:  # whatever it is: the results of the other requests are worth more
            error = f"{type(failure).__name__}: {failure}"
        self.watch.on_end()
        return self._result(planned, sent_s, asked, answer, error)

    async def _receive(self, body: bytes, answer: Answer) -> str | None:
        async with self.session.post(self.url, data=body) as response:
            if response.status != 200:
                return f"HTTP {response.status}: {_message(await response.content.read(_ERROR_BYTES_MAX))}"
            parser = EventParser()
            async for data in response.content.iter_any():
                at_s = self.now_s()
                for event in parser.feed(data):
                    answer.take(event, at_s)
        if answer.error is not None:
            return answer.error
        return None if answer.finished else "the stream was cut"

    def _result(
        self, planned: Planned, sent_s: float, asked: int | None, answer: Answer, error: str | None
    ) -> Sent:
        chunks: tuple[Chunk, ...]
        chunks, counting = answer.chunks()
        if error is None:
            self.counting[counting] += 1
        return Sent(
            scheduled_s=planned.at_s,
            sent_s=sent_s,
            end_s=self.now_s(),
            chunks=chunks,
            error=error,
            prompt_tokens=answer.prompt_tokens or planned.prompt_tokens,
            asked_tokens=asked,
        )


def _cause(failure: Exception) -> str:
    """Return why there is no connection, without the ports that differ from request to request."""
    cause = getattr(failure, "os_error", failure)
    if not isinstance(cause, OSError) or not cause.errno:
        return type(failure).__name__
    if cause.errno == errno.EMFILE:
        return "this client may open no more files (ulimit -n)"
    if isinstance(cause, ssl.SSLError | socket.gaierror):  # with numbers of their own
        return str(cause.strerror)
    return os.strerror(cause.errno)


def _message(data: bytes) -> str:
    try:
        return message_of(orjson.loads(data))
    except orjson.JSONDecodeError:
        return data.decode("utf-8", "replace").strip() or "no message"
