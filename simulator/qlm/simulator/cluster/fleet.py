"""All simulated instances, and the agents that run on them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from qlm.agents.batching.policies.registry import FCFS, batch_policy
from qlm.agents.core.agent import Agent
from qlm.agents.core.costs.engine_speed import EngineSpeed
from qlm.agents.core.costs.kv_offload import KvSwapCost, host_kv_bytes, host_kv_pools
from qlm.agents.core.state import AgentSettings
from qlm.agents.core.stats.gpu_time import Activity, GpuTime, GpuUse, Interval
from qlm.controller.core.idle_reasons import explain, plan_cost
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.operations import OperationStats
from qlm.domain.ports.engine import EngineCall
from qlm.planner.problem import Plan, Problem
from qlm.rct_estimator.host_memory import SwapCost
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.cluster.agent import SimulatedAgent
from qlm.simulator.cluster.clients import Clients, request_number
from qlm.simulator.cluster.engine_host import HostedModel
from qlm.simulator.cluster.event_queue import EPOCH_NS
from qlm.simulator.cluster.observer import ClusterObserver
from qlm.simulator.cluster.services import SharedServices
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.generation import OpenGeneration, Script, scripted_generation
from qlm.simulator.prefixes import prefix_tokens
from qlm.simulator.results import NEVER
from qlm.simulator.scenario import Scenario, SimulatedInstance, Workload

_BLOCKS_MAX: Final = 1 << 24
"""Block numbers per request: KV blocks of different requests match in shared prefixes only."""


AGENT_DEAD: Final = Activity(use=GpuUse.DOWN)


class SimulatedFleet:
    """Starts and kills agents.

    Attributes:
        instances: By number, in the order of their names.
        operations: Statistics of each agent session that has ended.
        gpu_times: Account of each instance's time.
        intervals: Uses of each instance's time, in order.
    """

    def __init__(
        self,
        services: SharedServices,
        scenario: Scenario,
        workload: Workload,
        clients: Clients,
        settings: AgentSettings,
        observer: ClusterObserver,
    ) -> None:
        self.instances: Sequence[SimulatedInstance] = sorted(scenario.instances, key=lambda each: each.id)
        self.swaps_warm = 0
        self.swaps_reload = 0
        self.swaps_cold = 0
        self.prefix_hits = 0
        self.swap_seconds = 0.0
        self.operations: list[OperationStats] = []
        self.intervals: Sequence[list[Interval]] = [[] for _ in self.instances]
        self._idle: set[int] = set()
        self.gpu_times: Sequence[GpuTime] = [
            GpuTime(each.append, partial(self._note_idle, number))
            for number, each in enumerate(self.intervals)
        ]
        self._services = services
        self._scenario = scenario
        self._clients = clients
        self._settings = settings
        self._observer = observer
        self._script = _answers_of(workload)
        self._contexts = {model.id: model.context_tokens for model in scenario.models}
        self._slowness = [1.0] * len(self.instances)
        self._sessions = [0] * len(self.instances)
        self._agents: dict[int, SimulatedAgent] = {}
        self._hosted: dict[tuple[str, ModelId, int, str | None], HostedModel] = {}

    def start(self) -> None:
        """Start all instances, each with a model loaded."""
        self._services.waiting.on_change = self._waiting_changed
        for number, instance in enumerate(self.instances):
            self._bring_up(number, instance.awake or instance.models[0])

    def number_of(self, instance: InstanceId) -> int:
        """Return an instance's number."""
        return next(n for n, each in enumerate(self.instances) if each.id == instance)

    def kill(self, number: int) -> None:
        """Kill an agent with its engines."""
        agent = self._agents.pop(number, None)
        if agent is not None:
            self._count(agent)
            self.gpu_times[number].observe(AGENT_DEAD, self._services.event_queue.now_ns)
            agent.kill()

    def restart(self, number: int) -> None:
        """Start a new agent on an instance, with no model loaded, unless one runs."""
        if number not in self._agents:
            self._bring_up(number, None)

    def kill_engine(self, number: int) -> None:
        """Kill the awake engine of an instance."""
        if number in self._agents:
            self._agents[number].kill_engine()

    def slow_down(self, number: int, factor: float) -> None:
        """Multiply all durations of an instance by `factor`: of iterations from the next one on."""
        self._slowness[number] = factor
        if number in self._agents:
            self._agents[number].host.change_pace()

    def finish(self) -> None:
        """Add the statistics of the agents that still run."""
        for agent in self._agents.values():
            self._count(agent)
        self._account()
        now_ns = self._services.event_queue.now_ns
        for number, time in enumerate(self.gpu_times):
            if number not in self._agents:
                time.observe(AGENT_DEAD, now_ns)
            time.close()
            assert time.total_ns == now_ns - EPOCH_NS, "each nanosecond has one use"

    def agent(self, number: int) -> Agent | None:
        """Return the agent of an instance, if one runs."""
        agent = self._agents.get(number)
        return agent.core if agent else None

    def running(self, number: int) -> int:
        """Return the batch size of an instance."""
        agent = self._agents.get(number)
        driver = agent.host.driver if agent else None
        return driver.engine.running if driver else 0

    def kv_usage(self, number: int) -> float:
        """Return the share of an instance's KV blocks in use."""
        agent = self._agents.get(number)
        driver = agent.host.driver if agent else None
        return driver.engine.kv_usage if driver else 0.0

    def awake(self, number: int) -> int:
        """Return the index of an instance's awake model, or NEVER."""
        agent = self._agents.get(number)
        model = agent.host.awake if agent else None
        return next((n for n, each in enumerate(self._scenario.models) if each.id == model), NEVER)

    def explain_idle(self, problem: Problem, plan: Plan) -> None:
        """Note the costs that a plan compared at instances that are idle beside work."""
        self._account()
        cost_s = plan_cost(problem, plan)
        for instance, time in zip(self.instances, self.gpu_times, strict=True):
            explain(time, problem, plan, instance.id, cost_s)

    def _waiting_changed(self) -> None:
        """Account for the time of idle instances; the others do the same thing whatever waits."""
        for number in tuple(self._idle):
            self._agents[number].core.account(self._services.event_queue.now_ns)

    def _note_idle(self, number: int, idle: bool) -> None:
        (self._idle.add if idle else self._idle.discard)(number)

    def _account(self) -> None:
        """Account for the time of all instances."""
        for agent in self._agents.values():
            agent.core.account(self._services.event_queue.now_ns)

    def _bring_up(self, number: int, awake: ModelId | None) -> None:
        instance = self.instances[number]
        agent = self._agents[number] = SimulatedAgent(
            self._services,
            instance,
            number,
            session=self._sessions[number],
            settings=replace(self._settings, batching=instance.batching or FCFS, aborts=instance.aborts),
            models=self._models(instance),
            host_memory_bytes=self._scenario.fleet.kinds[instance.kind].host_memory_bytes,
            slowness=partial(self._slowness.__getitem__, number),
            on_submitted=self._clients.on_submitted,
            on_evicted=self._clients.on_evicted,
            on_leased=self._observer.on_leased,
            gpu_time=self.gpu_times[number],
        )
        self._sessions[number] += 1
        agent.start(awake)

    def _count(self, agent: SimulatedAgent) -> None:
        self.swaps_warm += agent.host.swaps.warm
        self.swaps_reload += agent.host.swaps.reload
        self.swaps_cold += agent.host.swaps.cold
        self.swap_seconds += agent.host.swaps.seconds
        self.prefix_hits += agent.host.prefix_hits
        self.operations.append(agent.core.state.stats.operations.stats())

    def _models(self, instance: SimulatedInstance) -> Mapping[ModelId, HostedModel]:
        fleet = self._scenario.fleet
        profiles = {model: fleet.profiles[(model, instance.kind)] for model in instance.models}
        wanted = {
            model: host_kv_bytes(profile, self._scenario.host_kv_bytes) for model, profile in profiles.items()
        }
        host_memory_bytes = fleet.kinds[instance.kind].host_memory_bytes
        pools = host_kv_pools(profiles, wanted, host_memory_bytes, instance.swap_tiers)
        models = {}
        for model, kv_bytes in pools.items():
            batching = instance.engine_batching
            key = (instance.kind, model, kv_bytes, batching)
            if key not in self._hosted:
                true = self._scenario.true_profile(model, instance.kind)
                self._hosted[key] = self._host(model, profiles[model], true, kv_bytes, batching)
            models[model] = self._hosted[key]
        return models

    def _host(
        self, model: ModelId, profile: Profile, true: Profile, kv_bytes: int, batching: str | None
    ) -> HostedModel:
        capacity = _capacity(profile, self._contexts[model])
        opener: OpenGeneration = scripted_generation(
            self._script, block_tokens=capacity.block_tokens, context_tokens=capacity.context_tokens
        )

        offloading = self._scenario.kv_offloading

        def new_engine() -> BatchingEngine:
            policy = None if batching is None else batch_policy(batching)
            engine = BatchingEngine(
                true, capacity, opener, host_kv_bytes=kv_bytes, policy=policy, offloading=offloading
            )
            engine.on_preempted.append(lambda each: self._clients.on_preempted(each.call_id))
            return engine

        return HostedModel(
            profile=true,
            capacity=capacity,
            cost=SwapCost.of(profile, host_kv_bytes=kv_bytes),
            kv_cost=KvSwapCost.of(profile, kv_bytes),
            speed=EngineSpeed.of(profile),
            expected=profile,
            new_engine=new_engine,
        )


def _answers_of(workload: Workload) -> Callable[[EngineCall], Script]:
    """Return a function from a call, which begins or resumes an answer, to the rest of the answer."""
    prompts, outputs = workload.prompt_tokens.tolist(), workload.output_tokens.tolist()
    shared = prefix_tokens(workload).tolist()

    def script(call: EngineCall) -> Script:
        number = request_number(call.call_id)
        done = len(call.prompt_ids) - prompts[number]
        base = (number + 1) * _BLOCKS_MAX
        if not workload.prefixes:
            return Script(output_tokens=max(1, outputs[number] - done), base=base)
        return Script(
            output_tokens=max(1, outputs[number] - done),
            base=base,
            prefix_ids=workload.prefixes[number],
            prefix_tokens=shared[number],
        )

    return script


def _capacity(profile: Profile, context_tokens: int) -> EngineCapacity:
    """Return the capacity of an engine of this profile whose model serves `context_tokens` of context."""
    return EngineCapacity(
        kv_tokens=profile.kv_tokens,
        block_tokens=profile.block_tokens,
        seqs_max=profile.seqs_max,
        context_tokens=min(profile.context_tokens, context_tokens, profile.kv_tokens),
    )
