"""The part of a vLLM 0.32 scheduler that the host of a batch policy works on, without vLLM."""

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from qlm.agents.vllm_scheduler.host import PolicyHost
from qlm.agents.vllm_scheduler.settings import SchedulerSettings

BLOCK_TOKENS: Final = 16


@dataclass(eq=False)
class EngineRequest:
    """A request as vLLM has it; `blocks` are those that it has, shared ones included."""

    request_id: str
    state: str = "WAITING"
    num_prompt_tokens: int = 100
    num_output_tokens: int = 0
    max_tokens: int = 500
    blocks: int = 0
    objective: dict[str, Any] | None = None
    num_preemptions: int = 0
    next_decode_eligible_step: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def status(self) -> Any:
        return SimpleNamespace(name=self.state)

    @property
    def sampling_params(self) -> Any:
        return SimpleNamespace(extra_args=self.objective)


class Gate(deque[EngineRequest]):
    """As `GatedQueue`; it counts how often it was arranged."""

    open = 0
    untouched = False
    arranged = 0

    def arrange(self, first: list[EngineRequest], rest: list[EngineRequest]) -> None:
        self.clear()
        self.extend(first)
        self.extend(rest)
        self.open, self.untouched = len(first), True
        self.arranged += 1

    def add_request(self, request: EngineRequest) -> None:
        self.append(request)
        self.untouched = False

    def prepend_request(self, request: EngineRequest) -> None:
        self.appendleft(request)
        self.untouched = False

    def pop_request(self) -> EngineRequest:
        self.open -= 1
        return self.popleft()


@dataclass
class Engine:
    """Scheduler of one engine.

    Args:
        requests: Those that run and those that wait, in its order.
        kv_blocks: KV blocks in all.
        free: KV blocks that no request has.
    """

    requests: dict[str, EngineRequest]
    kv_blocks: int
    free: int
    running: list[EngineRequest] = field(default_factory=list)
    waiting: Gate = field(default_factory=Gate)
    kv_holding_waiting: deque[EngineRequest] = field(default_factory=deque)
    block_size: int = BLOCK_TOKENS
    max_num_active_reqs: int = 256
    max_num_scheduled_tokens: int = 2048
    current_step: int = 0
    requires_kv_delivery: bool = False
    parallel_config: Any = field(default_factory=lambda: SimpleNamespace(tensor_parallel_size=1))

    def __post_init__(self) -> None:
        self.running = [each for each in self.requests.values() if each.state == "RUNNING"]
        self.waiting.extend(each for each in self.requests.values() if each.state != "RUNNING")

    @property
    def kv_cache_config(self) -> Any:
        tensors = [SimpleNamespace(size=(self.kv_blocks + 1) * BLOCK_TOKENS * 1000)]
        return SimpleNamespace(num_blocks=self.kv_blocks + 1, kv_cache_tensors=tensors)

    @property
    def kv_cache_manager(self) -> Any:
        blocks = {id: range(each.blocks) for id, each in self.requests.items()}
        manager = SimpleNamespace(req_to_blocks=blocks)
        return SimpleNamespace(
            block_pool=SimpleNamespace(get_num_free_blocks=lambda: self.free),
            coordinator=SimpleNamespace(single_type_managers=[manager]),
        )

    def admit(self) -> str:
        """Let the first through the gate run."""
        request = self.waiting.pop_request()
        request.state = "RUNNING"
        self.running.append(request)
        return request.request_id

    def _request_blocks_can_be_freed(self, request: EngineRequest) -> bool:
        return True

    def _preempt_request(self, request: EngineRequest, now_s: float, drop_stale_output: bool) -> None:
        request.state, request.blocks = "PREEMPTED", 0
        request.num_preemptions += 1
        self.waiting.prepend_request(request)


def engine(requests: Iterable[EngineRequest], *, kv_blocks: int = 1000, free: int = 1000) -> Engine:
    """Return an engine with these requests."""
    return Engine({each.request_id: each for each in requests}, kv_blocks, free)


def hosted(scheduler: Engine, batching: str) -> PolicyHost:
    """Return a host with a policy that knows the requests of an engine."""
    host = PolicyHost(scheduler, SchedulerSettings(batching=batching), logging.getLogger("vllm.qlm"))
    for request in scheduler.requests.values():
        host.arrived(request, 0.0)
    return host
