"""Clients and gateway: requests arrive, are admitted, published and indexed; answers are recorded."""

from functools import cache, lru_cache
from typing import Final

from qlm.domain.attainment import OutputTimes, attained
from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.formats.extensions import NO_REQUEST_EXTENSIONS
from qlm.domain.formats.strands import TaskName
from qlm.domain.group import RequestClass
from qlm.domain.ids import GatewayId, RequestId, TokenIds
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice
from qlm.domain.request import Answer, AnswerKind, Request, RequestMetadata
from qlm.domain.sampling import Sampling
from qlm.gateway.core.admission import Load, Refuse, accepted, decide, observe
from qlm.gateway.core.limits import GatewayLimits
from qlm.simulator.cluster.arrivals import Arrivals
from qlm.simulator.cluster.event_queue import EPOCH_NS, Rank
from qlm.simulator.cluster.observer import ClusterObserver
from qlm.simulator.cluster.services import SharedServices
from qlm.simulator.policies import Policy
from qlm.simulator.results import NEVER, REFUSED, Outcomes
from qlm.simulator.scenario import Scenario, Workload
from qlm.simulator.tasks import ChosenObjective
from qlm.store.core import plans, requests

GATEWAY: Final = GatewayId("clients")

_PROMPTS_CACHED: Final = 1024
"""Prompts that are shared between requests, one per length: 8 bytes per token each."""

_ANSWER: Final = Answer(kind=AnswerKind.COMPLETION)


def request_number(id: str) -> int:
    """Return a request's row in the workload, from its id or from a generation's."""
    return int(id[1:8])


class _Columns:
    """Columns of the workload as lists: reading one number of an array is slow."""

    __slots__ = ("max_tokens", "model", "prompt_tokens", "slo_class", "tenant")

    def __init__(self, workload: Workload) -> None:
        self.model: list[int] = workload.model.tolist()
        self.slo_class: list[int] = workload.slo_class.tolist()
        self.tenant: list[int] = workload.tenant.tolist()
        self.prompt_tokens: list[int] = workload.prompt_tokens.tolist()
        self.max_tokens: list[int] = workload.max_tokens.tolist()


class Clients:
    """All clients, and their gateway.

    Attributes:
        unfinished: Requests of the workload that have not ended.
        submitted: Requests that have arrived.
        last_ns: Time of the last arrival or output.
    """

    def __init__(
        self,
        services: SharedServices,
        scenario: Scenario,
        workload: Workload,
        policy: Policy,
        outcomes: Outcomes,
        observer: ClusterObserver,
    ) -> None:
        self.unfinished = len(workload)
        self.submitted = 0
        self.last_ns = EPOCH_NS
        self._services = services
        self._event_queue = services.event_queue
        self._scenario = scenario
        self._workload = workload
        self._policy = policy
        self._columns = _Columns(workload)
        self._outcomes = outcomes
        # Single numbers of an array are read and written twice as fast through a memoryview.
        self._arrival_ns = outcomes.arrival_ns.data
        self._first_token_ns = outcomes.first_token_ns.data
        self._ended_ns = outcomes.ended_ns.data
        self._tokens = outcomes.tokens.data
        self._instance = outcomes.instance.data
        self._met = outcomes.met.data
        self._observer = observer
        self._metadata: dict[int, RequestMetadata] = {}
        self._times: dict[int, OutputTimes] = {}
        self._limits = GatewayLimits(queue_depth_max=scenario.queue_depth_max)
        self._load = Load()
        self._clusters = services.clusters
        self._arrivals = Arrivals(services.event_queue, workload, self._arrive)
        self._objectives = (
            None
            if workload.tasks is None or scenario.call_objectives is None
            else scenario.call_objectives(workload.tasks)
        )
        self._chosen: dict[int, ChosenObjective] = {}
        self._classes = [
            [policy.classify(model.id, each.slo, each.priority) for each in scenario.slo_classes]
            for model in scenario.models
        ]

    def start(self) -> None:
        """Schedule the first arrival, and refresh the load periodically."""
        self._services.on_output[GATEWAY] = self._on_output
        self._refresh_load(None)
        self._arrivals.start()

    def _refresh_load(self, _: object) -> None:
        if not self._services.store_down:
            now_ns = self._event_queue.now_ns
            self._clusters = self._services.clusters
            self._load = observe(self._load, plans.view(self._services.state, now_ns), now_ns)
        next_ns = self._event_queue.now_ns + round(self._limits.view_interval_s * 1e9)
        self._event_queue.schedule(next_ns, Rank.PERIODIC, -1, self._refresh_load)

    def _arrive(self, number: int) -> None:
        self.submitted += 1
        self.last_ns = self._event_queue.now_ns
        self._arrival_ns[number] = self.last_ns - EPOCH_NS
        if self._objectives is not None:
            self._chosen[number] = self._objectives.arrived(number, self.last_ns)
        columns = self._columns
        answer = decide(self._load, self._limits, self._class_of(number), columns.prompt_tokens[number])
        if isinstance(answer, Refuse) or self._services.broker_down or self._services.store_down:
            self._outcomes.outcome[number] = REFUSED
            self._count_finished(1 + self._arrivals.following(number))
            return
        self._load = accepted(self._load)
        confirmed_ns = self._event_queue.now_ns + self._services.broker_ns + self._services.store_ns
        self._event_queue.schedule(confirmed_ns, Rank.ARRIVAL, number, self._accept, number)

    def _accept(self, number: int) -> None:
        """Publish and index, as the gateway does before it confirms to the client."""
        request = self._request(number)
        metadata = request.metadata()
        self._metadata[number] = metadata
        self._times[number] = OutputTimes(metadata)
        self._services.broker.publish(metadata.cls.queue, request)
        self._services.waiting.published(request.id, request.model)
        self._observer.on_published(number, metadata)
        self._services.commit(
            requests.index(self._services.state, metadata, GATEWAY, self._event_queue.now_ns)
        )

    def _class_of(self, number: int) -> RequestClass:
        columns = self._columns
        chosen = self._chosen.get(number)
        if chosen is None:
            cls = self._classes[columns.model[number]][columns.slo_class[number]]
        else:
            at = columns.model[number] if chosen.model is None else chosen.model
            model = self._scenario.models[at].id
            priority = self._scenario.slo_classes[columns.slo_class[number]].priority
            cls = self._policy.classify(model, chosen.slo, priority)
            cls = cls.missed() if chosen.late else cls
        return self._clusters.of(cls, columns.prompt_tokens[number], self._task_of(number))

    def _task_of(self, number: int) -> TaskName | None:
        chosen = self._chosen.get(number)
        id = None if chosen is None else chosen.extensions.task_id
        return None if id is None else TaskName(self._workload.tenants[self._columns.tenant[number]], id)

    def _request(self, number: int) -> Request:
        columns, slo_class = self._columns, self._columns.slo_class[number]
        prompt_tokens = columns.prompt_tokens[number]
        objective = self._scenario.slo_classes[slo_class]
        chosen = self._chosen.get(number)
        return Request(
            id=RequestId(f"r{number:07d}"),
            cls=self._class_of(number),
            tenant=self._workload.tenants[columns.tenant[number]],
            slo=objective.slo if chosen is None else chosen.slo,
            on_miss=objective.on_miss,
            arrival_ns=EPOCH_NS + self._arrival_ns[number],
            prompt_tokens=prompt_tokens,
            sampling=_sampling(columns.max_tokens[number]),
            answer=_ANSWER,
            extensions=NO_REQUEST_EXTENSIONS if chosen is None else chosen.extensions,
            prompt_ids=_prompt(prompt_tokens),
        )

    def _on_output(self, part: OutputSlice) -> None:
        """Record output of a request; the client receives it `notice_ns` later."""
        number, end, times = request_number(part.id), part.end, self._times
        self.last_ns = self._event_queue.now_ns
        at_ns = self.last_ns + self._services.notice_ns
        if part.offset == 0 and part.token_ids:
            self._first_token_ns[number] = at_ns - EPOCH_NS
        # The engine reports some iterations at once; a real one streams each.
        tokens = end - self._tokens[number]
        times[number].take_run(tokens, at_ns)
        self._observer.on_output(number, tokens, at_ns)
        self._tokens[number] = end
        if part.outcome is not None:
            self._services.waiting.ended(part.id)
            self._on_ended(number, part.outcome, end, at_ns)

    def _on_ended(self, number: int, outcome: Outcome, tokens: int, at_ns: int) -> None:
        outcomes = self._outcomes
        self._ended_ns[number] = at_ns - EPOCH_NS
        outcomes.outcome[number] = outcome.value
        times = self._times.pop(number)
        metadata = self._metadata.pop(number)
        met = attained(metadata, times, ended_ns=at_ns, tokens=tokens)
        if times.timeline is not None and outcome.ok:
            outcomes.read(number, times.timeline)
        self._met[number] = outcome.ok and met is not False
        if self._objectives is not None:
            first_ns = self._first_token_ns[number]
            self._objectives.ended(metadata, None if first_ns == NEVER else EPOCH_NS + first_ns, at_ns)
        self._chosen.pop(number, None)
        if outcome.ok:
            self._arrivals.ended(number, at_ns)
        self._count_finished(1 if outcome.ok else 1 + self._arrivals.following(number))

    def _count_finished(self, requests: int) -> None:
        self.unfinished -= requests
        if not self.unfinished:
            self._event_queue.stop()

    def on_submitted(self, id: RequestId, instance: int) -> None:
        """Record the instance that runs a request."""
        self._instance[request_number(id)] = instance
        self._observer.on_submitted(id, instance)

    def on_preempted(self, call_id: str) -> None:
        """Count a preemption of a request inside an engine."""
        self._outcomes.engine_preemptions[request_number(call_id)] += 1

    def on_evicted(self, id: RequestId) -> None:
        """Count an eviction of a request."""
        self._outcomes.evictions[request_number(id)] += 1


@lru_cache(maxsize=_PROMPTS_CACHED)
def _prompt(tokens: int) -> TokenIds:
    return (0,) * tokens


@cache
def _sampling(max_tokens: int) -> Sampling:
    return Sampling(max_tokens=max_tokens, eos_token_ids=(EOS_ID,))
