"""The engines of one agent's world: deterministic, so that a wrong resume shows at once."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from qlm.agents.core.agent import Agent
from qlm.agents.core.events import EngineChanged, EngineProbed, Event, GenerationEnded, Progress
from qlm.agents.core.request import Phase
from qlm.domain.actions import ProbeEngine, Submit
from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.ids import ModelId, RequestId, TokenIds
from qlm.domain.ports.engine import EngineCall
from qlm.domain.request import Request
from qlm.domain.sampling import Evictability

EOS: Final = 7
CAPACITY = EngineCapacity(kv_tokens=256, block_tokens=16, seqs_max=3, context_tokens=4096)


def answer_to(request: Request) -> TokenIds:
    """The one right answer: it ends by itself after as many tokens as the tenant's name says."""
    natural = int(request.tenant)
    return (*range(100, 100 + natural - 1), EOS)[: request.sampling.max_tokens]


def finish_of(request: Request) -> str:
    """How an engine ends that answer."""
    return "stop" if answer_to(request)[-1] == EOS else "length"


@dataclass(slots=True, eq=False)
class Running:
    """A generation: from its submission until the protocol has heard its end."""

    request: Request
    call: EngineCall
    arrived: bool = False
    abort_asked: bool = False
    finish: str | None = None
    abandoned: bool = False
    made: int = 0


class EngineRoom(ABC):
    """Generations and engine states; a step of it is an event for the protocol.

    Attributes:
        requests: Everything ever accepted.
        calls: Generations whose end the protocol has not heard.
        aborts_sent: Ids of the calls that the protocol asked to abort.
        granted_tokens: Output tokens that the agent knows of, by request, in its present lease.
        awake: The model that serves; None also while one is being brought up.
        deaths: What the host has yet to say of its engines.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.requests: dict[RequestId, Request] = {}
        self.calls: list[Running] = []
        self.aborts_sent: set[str] = set()
        self.granted_tokens: dict[RequestId, int] = {}
        self.probes: list[ProbeEngine] = []
        self.swap: ModelId | None = None
        self.awake: ModelId | None = None
        self.asleep: set[ModelId] = set()
        self.deaths: list[EngineChanged] = []

    @abstractmethod
    def send(self, event: Event) -> None:
        """Give the protocol an event."""

    def submit(self, action: Submit) -> None:
        request = self.requests[action.id]
        done = len(action.call.prompt_ids) - request.prompt_tokens
        twins = [c for c in self.calls if c.request.id == action.id and not c.abandoned and not c.finish]
        assert not twins, "submitted while another of its calls runs"
        assert action.call.call_id not in {c.call.call_id for c in self.calls}
        assert action.call.prompt_ids[request.prompt_tokens :] == answer_to(request)[:done]
        self.granted_tokens[action.id] = max(done, self.granted_tokens.get(action.id, 0))
        assert 1 <= action.call.sampling.max_tokens == request.sampling.max_tokens - done
        assert not done or request.evictability is not Evictability.PINNED, "resumed what cannot be"
        assert self._generating() <= CAPACITY.seqs_max, "more running than the batch has places"
        assert self.awake in (None, request.model), "submitted to another model's engine"
        lost = None if self.awake else "lost"
        self.calls.append(Running(request, action.call, made=done, finish=lost))

    def _generating(self) -> int:
        return sum(h.phase in (Phase.RUNNING, Phase.ABORTING) for h in self.agent.state.requests.all.values())

    def ask_abort(self, call_ids: tuple[str, ...]) -> None:
        """Take an abort; one that overtakes its submission is ignored, as by a real engine."""
        self.aborts_sent.update(call_ids)
        for call in self.calls:
            call.abort_asked |= call.arrived and call.call.call_id in call_ids

    def note_abandoned(self) -> None:
        """Mark the generations that the protocol no longer follows; it must have aborted them."""
        for call in self.calls:
            if call.call.call_id not in self.agent.state.requests.calls and call.finish is None:
                assert call.call.call_id in self.aborts_sent, "a generation was forgotten and not aborted"
                call.abandoned = True

    def start_swap(self, model: ModelId) -> None:
        assert self.swap is None, "a swap began while another was under way"
        followed = [c for c in self.calls if c.call.call_id in self.agent.state.requests.calls]
        assert all(c.finish for c in followed), "a swap began under running requests"
        self.swap = model
        if self.awake is not None:
            self.break_calls()
            self.asleep.add(self.awake)
            old, self.awake = self.awake, None
            self.deaths.append(EngineChanged(model=old, state=EngineState.ASLEEP))

    def break_calls(self) -> None:
        for call in self.calls:
            call.finish = call.finish or "lost"

    def end_swap(self, *, ok: bool) -> None:
        """The host's answer to a swap, after all it had to say before."""
        model, self.swap = self.swap, None
        assert model is not None
        while self.deaths:
            self.send(self.deaths.pop(0))
        self.asleep.discard(model)
        if ok:
            self.awake = model
            self.send(EngineChanged(model=model, state=EngineState.AWAKE, capacity=CAPACITY))
        else:
            self.send(EngineChanged(model=model, state=EngineState.COLD))
            self.send(EngineChanged(model=model, state=EngineState.FAILED, error="it did not start"))

    def engine_dies(self) -> None:
        assert self.awake is not None
        self.break_calls()
        self.deaths.append(EngineChanged(model=self.awake, state=EngineState.FAILED, error="it died"))
        self.awake = None

    def tell_death(self) -> None:
        self.send(self.deaths.pop(0))

    def answer_probe(self, *, healthy: bool) -> None:
        by_token = self.probes.pop(0).token_s > 0
        self.send(EngineProbed(healthy=healthy and self.awake is not None, by_token=by_token))

    def arrive(self, call: Running) -> None:
        """A submission reaches its engine; only from now on can it be aborted."""
        call.arrived = True

    def generate(self, call: Running, tokens: int) -> None:
        """Let a call make some tokens; its end, if it finished, is sent later."""
        whole = answer_to(call.request)
        made = whole[call.made : call.made + tokens]
        call.made += len(made)
        if call.made == len(whole):
            call.finish = finish_of(call.request)
        if call.call.call_id in self.agent.state.requests.calls:
            known = self.granted_tokens.get(call.request.id, 0)  # more than that, if it repeats an answer
            self.granted_tokens[call.request.id] = max(known, call.made)
        self.send(Progress(chunks=((call.call.call_id, made),)))

    def end_call(self, call: Running, finish: str) -> None:
        call.finish = finish
        self.calls.remove(call)
        self.send(GenerationEnded(call_id=call.call.call_id, finish=finish, detail="refused by the engine"))

    def calm_engines(self) -> None:
        """Let every generation make a token or come to its end."""
        while self.probes:
            self.answer_probe(healthy=True)
        for call in list(self.calls):
            if call.finish is None and call.abort_asked:
                call.finish = "abort"
            elif call.finish is None and call.call.call_id not in self.aborts_sent:
                # One that was to be aborted stalls until it is.
                self.generate(call, 1)
            if call.finish is not None:
                self.end_call(call, call.finish)
