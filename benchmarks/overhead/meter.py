"""Meter of an engine's throughput while work waits, from its own metrics."""

import http.client
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from benchmarks.overhead.work import PROMPT_TOKENS
from benchmarks.processor_time import group_s


class Sample(NamedTuple):
    """Reading: time, processor time of the engine, requests in its batch, prompt and output tokens."""

    at_s: float
    engine_s: float
    running: float
    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """Figures from the first full batch to the start of the last request.

    Attributes:
        seconds: Length of that time.
        tokens_per_s: Output tokens per second.
        tokens_per_engine_s: Output tokens per second of the engine's processor time; larger for fuller
            batches.
        empty_mean: Mean number of empty batch slots over the readings.
        empty_share: Share of the readings with an empty batch slot.
        samples: Number of readings.
    """

    seconds: float
    tokens_per_s: float
    tokens_per_engine_s: float
    empty_mean: float
    empty_share: float
    samples: int


class Meter:
    """Reader of an engine's metrics, on its own thread and over one connection."""

    def __init__(self, url: str, group: int, every_s: float) -> None:
        """Prepare to read the engine at `url`, whose process group is `group`."""
        self._group = group
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read_on)
        self.samples: list[Sample] = []

    def __enter__(self) -> Self:
        self.samples.append(self._read())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._connection.close()

    def wait(self, done: Callable[["Meter"], bool], timeout_s: float) -> None:
        """Wait for a condition on the readings.

        Raises:
            TimeoutError: It did not hold in time.
        """
        until_s = time.monotonic() + timeout_s
        while not done(self):
            if time.monotonic() > until_s or not self._thread.is_alive():
                raise TimeoutError(f"the engine did not finish within {timeout_s:g} s: {self.samples[-1]}")
            time.sleep(0.1)

    def written(self) -> float:
        """Count output tokens since the first reading."""
        return self.samples[-1].output_tokens - self.samples[0].output_tokens

    def _read_on(self) -> None:
        while not self._over.wait(self._every_s):
            self.samples.append(self._read())

    def _read(self) -> Sample:
        self._connection.request("GET", "/metrics")
        text = self._connection.getresponse().read().decode()
        names = ("num_requests_running", "prompt_tokens_total", "generation_tokens_total")
        return Sample(time.monotonic(), group_s(self._group), *(_value(name, text) for name in names))


def filled(samples: Sequence[Sample], *, seqs_max: int, requests: int) -> Filled:
    """Evaluate the readings of a run.

    Raises:
        ValueError: The batch was never full while requests waited.
    """
    begun = [(each.prompt_tokens - samples[0].prompt_tokens) / PROMPT_TOKENS for each in samples]
    last = max(n for n, count in enumerate(begun) if count < requests)
    first = next((n for n, each in enumerate(samples) if each.running >= seqs_max), last)
    if first >= last:
        raise ValueError(f"the batch of {seqs_max} was never full while some of {requests} requests waited")
    window = samples[first : last + 1]
    seconds = window[-1].at_s - window[0].at_s
    empty = [seqs_max - each.running for each in window]
    tokens = window[-1].output_tokens - window[0].output_tokens
    return Filled(
        seconds=seconds,
        tokens_per_s=tokens / seconds,
        tokens_per_engine_s=tokens / (window[-1].engine_s - window[0].engine_s),
        empty_mean=sum(empty) / len(empty),
        empty_share=sum(each > 0 for each in empty) / len(empty),
        samples=len(window),
    )


def _value(name: str, metrics: str) -> float:
    found = re.search(rf"^vllm:{name}\{{[^}}]*\}} (\S+)$", metrics, re.MULTILINE)
    if found is None:
        raise ValueError(f"the engine's metrics lack vllm:{name}")
    return float(found.group(1))
