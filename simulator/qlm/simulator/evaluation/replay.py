"""Replay of a log of requests by the engine model, in virtual time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.cluster.engine_driver import EngineDriver
from qlm.simulator.cluster.event_queue import EPOCH_NS, EventQueue, Rank
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.generation import Script, scripted_generation
from qlm.simulator.engine.model import Chunk, Emission
from qlm.simulator.engine.step_time import StepTimes
from qlm.simulator.evaluation.request_log import RequestLog
from qlm.simulator.prefixes import block_ids
from qlm.simulator.scenario import IntArray

_NEVER: Final = -1
_PROMPT_ID: Final = 0
"""Of the ids of prompts only the number matters."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replayed:
    """Outcome of a replay; arrays have shape (requests,), in the order of the log.

    Attributes:
        first_token_ns: First token, on the clock of the log's `arrival_ns`.
        end_ns: Last token.
        cached_tokens: Prompt tokens found in the prefix cache.
        preemptions: Preemptions for lack of KV blocks.
    """

    first_token_ns: IntArray
    end_ns: IntArray
    cached_tokens: IntArray
    preemptions: int


def replay(log: RequestLog, profile: Profile) -> Replayed:
    """Serve the arrivals and lengths of a log with the engine model, as the simulator does.

    The engine starts empty, with the profile's limits; only its limit of a context is raised to the longest
    request, since the engine of the log has served that. Requests that arrive at once are added at once.

    Raises:
        InvalidValueError: The profile's KV cache cannot hold a request; names its line.
    """
    return _Replay(log, engine_of(log, profile), profile.request_ns).run()


def engine_of(log: RequestLog, profile: Profile, times: StepTimes | None = None) -> BatchingEngine:
    """Return an empty engine of the profile that will serve a log; call ids are numbers of requests.

    Args:
        log: The requests.
        profile: Limits and durations.
        times: Durations instead of the profile's.

    Raises:
        InvalidValueError: The profile's KV cache cannot hold a request; names its line.
    """
    capacity = _capacity(log, profile)
    opener = scripted_generation(
        _Scripts(log, capacity.kv_blocks + 1),
        block_tokens=capacity.block_tokens,
        context_tokens=capacity.context_tokens,
    )
    budget = profile.batched_tokens_max
    return BatchingEngine(profile, capacity, opener, batched_tokens_max=budget, times=times)


def _capacity(log: RequestLog, profile: Profile) -> EngineCapacity:
    blocks = profile.kv_tokens // profile.block_tokens - 1  # vLLM keeps one, its null block
    kv_tokens, texts = blocks * profile.block_tokens, log.prompt_tokens + log.output_tokens
    row = int(texts.argmax())
    if texts[row] > kv_tokens:
        where = f"{log.name}:{log.lines[row]}: prompt_tokens + output_tokens"
        raise InvalidValueError(where, int(texts[row]), f"at most {kv_tokens}, the profile's KV cache")
    return EngineCapacity(
        kv_tokens=kv_tokens,
        block_tokens=profile.block_tokens,
        seqs_max=profile.seqs_max,
        context_tokens=int(texts[row]),
    )


class _Scripts:
    """Returns the length and content of the text of a call, whose id is the request's number."""

    def __init__(self, log: RequestLog, blocks_max: int) -> None:
        self._outputs = log.output_tokens.tolist()
        self._prefixes = block_ids(log.prefix, log.prefix_tokens)
        self._prefix_tokens = log.prefix_tokens.tolist()
        self._blocks_max = blocks_max

    def __call__(self, call: EngineCall) -> Script:
        number = int(call.call_id)
        return Script(
            output_tokens=self._outputs[number],
            base=number * self._blocks_max,
            prefix_ids=self._prefixes[number],
            prefix_tokens=self._prefix_tokens[number],
        )


class _Replay:
    """Clients and clock of one engine."""

    def __init__(self, log: RequestLog, engine: BatchingEngine, request_ns: int) -> None:
        self._log = log
        self._engine = engine
        self._queue = EventQueue()
        self._driver = EngineDriver(self._queue, 0, engine, self._on_output, lambda: 1.0, request_ns)
        self._first_ns, self._end_ns, self._cached = (np.full(len(log), _NEVER) for _ in range(3))

    def run(self) -> Replayed:
        starts = np.flatnonzero(np.diff(self._log.arrival_ns, prepend=_NEVER))
        for first, end in zip(starts.tolist(), [*starts[1:].tolist(), len(self._log)], strict=True):
            at_ns = EPOCH_NS + int(self._log.arrival_ns[first])
            self._queue.schedule(at_ns, Rank.ARRIVAL, 0, self._arrive, range(first, end))
        while (next_ns := self._queue.next_ns) is not None:
            self._queue.run(next_ns, events_max=1)
        assert (self._end_ns != _NEVER).all(), "an engine without requests is the only one that stops"
        return Replayed(
            first_token_ns=self._first_ns,
            end_ns=self._end_ns,
            cached_tokens=self._cached,
            preemptions=self._engine.counters.preemptions,
        )

    def _arrive(self, numbers: range) -> None:
        for number in numbers:
            prompt = (_PROMPT_ID,) * int(self._log.prompt_tokens[number])
            sampling = Sampling(max_tokens=int(self._log.output_tokens[number]), ignore_eos=True)
            self._driver.submit(EngineCall(call_id=str(number), prompt_ids=prompt, sampling=sampling))

    def _on_output(self, emissions: Sequence[Emission], _: Sequence[Chunk]) -> None:
        now_ns = self._queue.now_ns - EPOCH_NS
        for emission in emissions:
            number = int(emission.call_id)
            if self._first_ns[number] == _NEVER:
                self._first_ns[number], self._cached[number] = now_ns, emission.cached_tokens
            if emission.finish is not None:
                self._end_ns[number] = now_ns
