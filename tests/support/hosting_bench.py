"""A bench around an agent that hosts a batch policy."""

from collections.abc import Callable
from functools import partial
from typing import Any

from qlm.agents.batching.decision import BatchPolicy
from qlm.agents.batching.policies.registry import POLICIES
from qlm.agents.core.agent import NO_COSTS
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import GenerationEnded, Progress, Pulled
from qlm.agents.core.request import Phase
from qlm.agents.core.state import AgentSettings
from qlm.domain.actions import Abort, AcquireLease, Pull, PulledMessage, Submit
from qlm.domain.ids import GroupId, RequestId
from qlm.domain.request import Request
from support.agent_bench import Bench, delivery_of, group_of
from support.policy_engine import Recorded
from support.requests import a_request


class HostingBench(Bench):
    """An agent that hosts a policy by aborts, and its engine: calls by request.

    Attributes:
        calls: The latest submission of each request.
        policies: Policies of its models, with what they saw.
    """

    def __init__(
        self,
        batching: str = "edf",
        *,
        policy: Callable[[], BatchPolicy] | None = None,
        seqs_max: int = 2,
        kv_tokens: int = 4096,
        costs: OperationCosts = NO_COSTS,
    ) -> None:
        """Begin with an engine awake; `policy` makes the policy in place of that of the name."""
        self.calls: dict[str, Submit] = {}
        self.policies: list[Recorded] = []
        settings = AgentSettings(batching=batching, aborts=True)
        super().__init__(
            seqs_max=seqs_max,
            kv_tokens=kv_tokens,
            settings=settings,
            costs=costs,
            new_policy=partial(self._recorded, policy or POLICIES[batching]),
        )

    def _recorded(self, new_policy: Callable[[], BatchPolicy]) -> BatchPolicy:
        self.policies.append(Recorded(new_policy()))
        return self.policies[-1]

    @property
    def policy(self) -> Recorded:
        """Of the awake model."""
        return self.policies[0]

    def arrive(self, request: Request, output: tuple[int, ...] = (), *, preemptions: int = 0) -> list[str]:
        """Pull and lease a request; return the requests that are started."""
        self.queue(group_of(request))
        assert self.take(Pull), "there is room for it"
        message = PulledMessage(delivery=delivery_of(request), request=request)
        self.send(Pulled(group=GroupId("g"), limit=1, messages=(message,)))
        self.take(AcquireLease)
        self.log[request.id] = list(output)
        self.answer(request, self.granted(output, preemptions=preemptions))
        self.queue()
        return self.started()

    def started(self) -> list[str]:
        """Return the requests that were submitted since the last call."""
        submits = self.take(Submit)
        self.calls.update((submit.id, submit) for submit in submits)
        return [submit.id for submit in submits]

    def aborted(self) -> list[str]:
        """Return the requests that were asked to stop since the last call."""
        by_call = {submit.call.call_id: id for id, submit in self.calls.items()}
        aborts = [by_call[call_id] for abort in self.take(Abort) for call_id in abort.call_ids]
        return list(dict.fromkeys(aborts))  # one that the engine does not answer is repeated

    def tokens(self, id: str, *token_ids: int) -> None:
        self.send(Progress(chunks=((self.calls[id].call.call_id, token_ids),)))

    def ends(self, id: str, finish: str = "stop") -> list[str]:
        """End a generation and log what there is; return the requests that are started."""
        self.send(GenerationEnded(call_id=self.calls[id].call.call_id, finish=finish))
        at_once = self.started()
        self.store_appends()
        return at_once + self.started()

    def phase(self, id: str) -> Phase | None:
        tracked = self.agent.state.requests.all.get(RequestId(id))
        return None if tracked is None else tracked.phase


def due(id: str, seconds: float, bench: Bench, **other: Any) -> Request:
    """Return a long request that is due so many seconds from now."""
    fields: dict[str, Any] = {"max_tokens": 1000, "arrival_ns": bench.now_ns} | other
    return a_request(id, deadline_ms=1000 * seconds, **fields)


def full(batching: str = "edf") -> HostingBench:
    """Return an agent whose two slots run requests due in 600 and 300 s, with three tokens each."""
    bench = HostingBench(batching)
    assert bench.arrive(due("late", 600, bench)) == ["late"]
    assert bench.arrive(due("soon", 300, bench)) == ["soon"]
    bench.tokens("late", 1, 2, 3)
    bench.tokens("soon", 4, 5, 6)
    return bench
