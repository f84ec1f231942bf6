"""Clients and the gateway's part: requests arrive, are admitted, published and indexed; answers are noted."""

from functools import cache, lru_cache
from typing import Final

from qlm.domain.attainment import attained
from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.ids import GatewayId, RequestId, TokenIds
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice
from qlm.domain.request import Answer, AnswerKind, Request, RequestCard
from qlm.domain.sampling import Sampling
from qlm.gateway.admission import Load, Refuse, accepted, decide, observe
from qlm.gateway.limits import GatewayLimits
from qlm.simulator.policies import Policy
from qlm.simulator.results import REFUSED, Outcomes
from qlm.simulator.scenario import Scenario, Workload
from qlm.simulator.world.shared import SharedParts
from qlm.simulator.world.timeline import EPOCH_NS, Rank
from qlm.simulator.world.watching import Watcher

GATEWAY: Final = GatewayId("clients")

_PROMPTS_KEPT: Final = 1024
"""Lengths of prompts of which one is kept for the next request: 8 bytes per token each."""

_ANSWER: Final = Answer(kind=AnswerKind.COMPLETION)


def request_number(id: str) -> int:
    """Row of a request in the workload, from its id or from a generation's."""
    return int(id[1:8])


class _Columns:
    """What is asked of the workload for each request, as plain numbers."""

    __slots__ = ("arrival_ns", "max_tokens", "model", "prompt_tokens", "slo_class", "tenant")

    def __init__(self, workload: Workload) -> None:
        self.arrival_ns: list[int] = workload.arrival_ns.tolist()
        self.model: list[int] = workload.model.tolist()
        self.slo_class: list[int] = workload.slo_class.tolist()
        self.tenant: list[int] = workload.tenant.tolist()
        self.prompt_tokens: list[int] = workload.prompt_tokens.tolist()
        self.max_tokens: list[int] = workload.max_tokens.tolist()


class Clients:
    """All clients together, and the gateway they talk to.

    Attributes:
        unfinished: Submitted or still to come, and not ended.
        last_ns: When something was last submitted, or ended.
    """

    def __init__(
        self,
        parts: SharedParts,
        scenario: Scenario,
        workload: Workload,
        policy: Policy,
        outcomes: Outcomes,
        watcher: Watcher,
    ) -> None:
        self.unfinished = len(workload)
        self.submitted = 0
        self.last_ns = EPOCH_NS
        self._parts = parts
        self._timeline = parts.timeline
        self._scenario = scenario
        self._workload = workload
        self._policy = policy
        self._columns = _Columns(workload)
        self._outcomes = outcomes
        # Of an array, single numbers are read and written twice as fast through a view.
        self._first_token_ns = outcomes.first_token_ns.data
        self._ended_ns = outcomes.ended_ns.data
        self._tokens = outcomes.tokens.data
        self._instance = outcomes.instance.data
        self._met = outcomes.met.data
        self._watcher = watcher
        self._cards: dict[int, RequestCard] = {}
        self._limits = GatewayLimits(queue_depth_max=scenario.queue_depth_max)
        self._load = Load()
        self._classes = [
            [policy.classify(model.id, each.slo, each.priority) for each in scenario.slo_classes]
            for model in scenario.models
        ]

    def start(self) -> None:
        """Let the first request come, and look at the load now and then."""
        self._parts.on_output[GATEWAY] = self._heard
        self._look(None)
        self._expect(0)

    def _expect(self, number: int) -> None:
        if number < len(self._workload):
            at_ns = EPOCH_NS + self._columns.arrival_ns[number]
            self._timeline.at(at_ns, Rank.ARRIVAL, number, self._arrive, number)

    def _look(self, _: object) -> None:
        if not self._parts.store_down:
            now_ns = self._timeline.now_ns
            self._load = observe(self._load, self._parts.store.view(now_ns), now_ns)
        again_ns = self._timeline.now_ns + round(self._limits.view_interval_s * 1e9)
        self._timeline.at(again_ns, Rank.BEAT, -1, self._look)

    def _arrive(self, number: int) -> None:
        self.submitted += 1
        self.last_ns = self._timeline.now_ns
        self._expect(number + 1)
        columns = self._columns
        cls = self._classes[columns.model[number]][columns.slo_class[number]]
        answer = decide(self._load, self._limits, cls, columns.prompt_tokens[number])
        if isinstance(answer, Refuse) or self._parts.broker_down or self._parts.store_down:
            self._outcomes.outcome[number] = REFUSED
            self._over()
            return
        self._load = accepted(self._load)
        confirmed_ns = self._timeline.now_ns + self._parts.broker_ns + self._parts.store_ns
        self._timeline.at(confirmed_ns, Rank.ARRIVAL, number, self._accept, number)

    def _accept(self, number: int) -> None:
        """Publish and index, as the gateway does before the client hears that it was accepted."""
        request = self._request(number)
        card = request.card()
        self._cards[number] = card
        self._parts.queue.publish(card.cls.queue, request)
        self._watcher.arriving(number, card)
        self._parts.commit(self._parts.store.index(card, GATEWAY, self._timeline.now_ns))

    def _request(self, number: int) -> Request:
        columns, slo_class = self._columns, self._columns.slo_class[number]
        prompt_tokens = columns.prompt_tokens[number]
        objective = self._scenario.slo_classes[slo_class]
        return Request(
            id=RequestId(f"r{number:07d}"),
            cls=self._classes[columns.model[number]][slo_class],
            tenant=self._workload.tenants[columns.tenant[number]],
            slo=objective.slo,
            on_miss=objective.on_miss,
            arrival_ns=EPOCH_NS + columns.arrival_ns[number],
            prompt_tokens=prompt_tokens,
            sampling=_sampling(columns.max_tokens[number]),
            answer=_ANSWER,
            prompt_ids=_prompt(prompt_tokens),
        )

    def _heard(self, part: OutputSlice) -> None:
        """Note what the store announces; the client has it `notice_ns` later."""
        number = request_number(part.id)
        at_ns = self._timeline.now_ns + self._parts.notice_ns
        if part.offset == 0 and part.token_ids:
            self._first_token_ns[number] = at_ns - EPOCH_NS
        self._tokens[number] = part.end
        self.last_ns = self._timeline.now_ns
        if part.outcome is not None:
            self._ended(number, part.outcome, part.end, at_ns)

    def _ended(self, number: int, outcome: Outcome, tokens: int, at_ns: int) -> None:
        first_ns, outcomes = self._first_token_ns[number], self._outcomes
        self._ended_ns[number] = at_ns - EPOCH_NS
        outcomes.outcome[number] = outcome.value
        judged = attained(
            self._cards.pop(number),
            first_output_ns=None if first_ns < 0 else EPOCH_NS + first_ns,
            ended_ns=at_ns,
            tokens=tokens,
        )
        self._met[number] = outcome.ok and judged is not False
        self._over()

    def _over(self) -> None:
        self.unfinished -= 1
        if not self.unfinished:
            self._timeline.stop()

    def submitted_to(self, id: RequestId, instance: int) -> None:
        """Note which instance runs a request."""
        self._instance[request_number(id)] = instance
        self._watcher.submitted(id, instance)

    def evicted(self, id: RequestId) -> None:
        """Note an eviction."""
        self._outcomes.evictions[request_number(id)] += 1


@lru_cache(maxsize=_PROMPTS_KEPT)
def _prompt(tokens: int) -> TokenIds:
    return (0,) * tokens


@cache
def _sampling(max_tokens: int) -> Sampling:
    return Sampling(max_tokens=max_tokens, eos_token_ids=(EOS_ID,))
