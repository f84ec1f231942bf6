"""Host of a batch policy in vLLM: it asks the policy, and pulls the three levers of vLLM's scheduler.

* preempt: vLLM's own `_preempt_request`, which frees the blocks and puts the request into the waiting queue;
* admit or park: a waiting queue of which vLLM sees only the part that the policy wants (`GatedQueue`);
* hold: `next_decode_eligible_step`, up to which `schedule` skips a running request.

Requests that load KV, wait for a grammar, or are sessions of streaming input are left to vLLM. The policy is
asked when a request has come or gone, and when it wants to be.
"""

from collections import deque
from collections.abc import Mapping
from logging import Logger
from typing import Any, Final

from qlm.agents.batching.guarded import GuardedPolicy
from qlm.agents.batching.sent_objective import NO_OBJECTIVE, Objective, objective_of
from qlm.agents.batching.view import Place
from qlm.agents.vllm_scheduler.counters import Counters
from qlm.agents.vllm_scheduler.engine_facts import machine_of, row_of, used_tokens
from qlm.agents.vllm_scheduler.engine_levers import Arrangement, hold, preempt
from qlm.agents.vllm_scheduler.learned import Learned
from qlm.agents.vllm_scheduler.levers import Levers, levers
from qlm.agents.vllm_scheduler.settings import SchedulerSettings
from qlm.agents.vllm_scheduler.streamed import StreamedRequest
from qlm.agents.vllm_scheduler.views import EngineRow, view_of
from qlm.domain.errors import InvalidValueError

_LEFT_TO_VLLM: Final = frozenset(
    {"WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", "WAITING_FOR_REMOTE_KVS", "WAITING_FOR_STREAMING_REQ"}
)
_CUT_OFF: Final = frozenset({"FINISHED_LENGTH_CAPPED", "FINISHED_ABORTED"})


class PolicyHost:
    """One policy and one vLLM scheduler. All times are seconds of the engine's clock.

    Args:
        scheduler: vLLM's, whose waiting queue is a `GatedQueue`.
        settings: Policy and machine.
        log: Logger of the engine.
    """

    def __init__(self, scheduler: Any, settings: SchedulerSettings, log: Logger) -> None:
        self._scheduler = scheduler
        self._policy = GuardedPolicy(settings.policy(), self._failed)
        self._link_bytes_per_s = settings.link_bytes_per_s
        self._learned = Learned(settings.iteration)
        self._streams: dict[str, StreamedRequest] = {}
        self._levers = Levers((), {}, frozenset(), False, 0.0)
        self._arrangement = Arrangement(scheduler, self._ours)
        self._changed = False
        self._begun: deque[tuple[object, float]] = deque()
        self._computed_s = 0.0
        self._warned: set[str] = set()
        self._log = log
        self.counters = Counters()

    def arrived(self, request: Any, now_s: float) -> None:
        """Take a new request."""
        stream = StreamedRequest(self._objective(request), now_s)
        self._streams[request.request_id] = stream
        self._learned.arrived(request.num_prompt_tokens - stream.objective.shown)
        self._changed = True

    def prepare(self, now_s: float, *, paused: bool) -> None:
        """Ask the policy if it is time, and set queues and requests for the next iteration."""
        if not paused:
            if self._streams and (self._changed or now_s >= self._levers.again_s):
                with self.counters.decision():
                    self._decide(now_s)
            self._pull(now_s)
        self._arrangement.follow(self._levers)

    def scheduled(self, output: object, began_s: float) -> None:
        """Note when an iteration began."""
        self._begun.append((output, began_s))

    def computed(self, scheduler_output: Any, outputs: Mapping[int, Any], now_s: float) -> None:
        """Deliver the tokens of an iteration to their readers, and learn how long it took."""
        for each in outputs.values():
            for output in each.outputs:
                if output.new_token_ids and (stream := self._streams.get(output.request_id)):
                    stream.deliver(len(output.new_token_ids), now_s)
        self._learn_duration(scheduler_output, now_s)
        if self.counters.due(now_s):
            self.log_counters()

    def ended(self, request: Any, now_s: float) -> None:
        """Forget a request that has ended, and learn from it."""
        stream = self._streams.pop(request.request_id, None)
        if stream is None:
            return
        self._changed = True
        if request.status.name != "FINISHED_ERROR":
            self._learned.ended(
                stream.objective.shown + request.num_output_tokens,
                now_s - stream.arrival_s,
                cut_off=request.status.name in _CUT_OFF,
            )

    def log_counters(self) -> None:
        """Write what was done since the last time to the log."""
        if text := self.counters.text():
            self._log.info("%s", text)

    # --- the policy

    def _decide(self, now_s: float) -> None:
        scheduler = self._scheduler
        rows = self._rows()
        machine = machine_of(scheduler, rows, self._learned.iteration, self._link_bytes_per_s)
        view = view_of(now_s, rows, machine, self._learned)
        self._changed = False
        self._levers = levers(self._policy.decide(view), view)
        # Who stands last is given up first when blocks run out.
        order = self._levers.order
        scheduler.running.sort(key=lambda request: order.get(request.request_id, -1))

    def _failed(self) -> None:
        self._warn("policy", "the batch policy failed: first come, first served instead", trace=True)

    def _rows(self) -> list[EngineRow]:
        scheduler, hold = self._scheduler, self._levers.hold
        placed = [
            (request, Place.HELD if request.request_id in hold else Place.INSIDE)
            for request in scheduler.running
        ]
        placed += [(request, Place.LOADING) for request in scheduler.kv_holding_waiting]
        placed += [(request, Place.OUTSIDE) for request in scheduler.waiting if self._ours(request)]
        return [
            row_of(scheduler, request, place, self._streams[request.request_id])
            for request, place in placed
            if request.request_id in self._streams
        ]

    def _ours(self, request: Any) -> bool:
        """Return True if the policy decides about a waiting request."""
        return request.request_id in self._streams and request.status.name not in _LEFT_TO_VLLM

    # --- the levers

    def _pull(self, now_s: float) -> None:
        preempted = preempt(self._scheduler, self._levers.preempt, now_s)
        self._learned.preemptions += preempted
        self.counters.preemptions += preempted
        self.counters.holds += hold(self._scheduler, self._levers.hold)

    # --- what it learns

    def _objective(self, request: Any) -> Objective:
        try:
            return objective_of(request.sampling_params.extra_args, prompt_tokens=request.num_prompt_tokens)
        except InvalidValueError as error:
            self._warn(error.field, f"request {request.request_id} is served without objective: {error}")
            return NO_OBJECTIVE

    def _learn_duration(self, scheduler_output: Any, now_s: float) -> None:
        began_s = now_s
        while self._begun:
            output, began_s = self._begun.popleft()
            if output is scheduler_output:
                break
        tokens = scheduler_output.total_num_scheduled_tokens
        if tokens:
            # With asynchronous scheduling, the iteration waited for the end of the one before it.
            duration_s = now_s - max(began_s, self._computed_s)
            self._learned.iterated(tokens, used_tokens(self._scheduler), duration_s)
            self._computed_s = now_s

    def _warn(self, kind: str, text: str, *, trace: bool = False) -> None:
        """Log a warning, once for each kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            self._log.warning("%s (others of this kind are not logged)", text, exc_info=trace)
