"""All simulated instances: their agents, one life after the other."""

from collections.abc import Mapping, Sequence
from functools import partial

from qlm.agents.host_memory import SwapCost
from qlm.agents.kv_swap import KvSwapCost, host_kv_bytes, host_kv_pools
from qlm.agents.protocol import AgentProtocol, AgentSettings
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.operations import OperationStats
from qlm.rct_estimator.profile import Profile
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.generation import OpenGeneration, scripted_generation
from qlm.simulator.results import NEVER
from qlm.simulator.scenario import Scenario, SimulatedInstance, Workload
from qlm.simulator.world.agent import SimulatedAgent
from qlm.simulator.world.clients import Clients
from qlm.simulator.world.engine_host import HostedModel
from qlm.simulator.world.scripts import script_of
from qlm.simulator.world.shared import SharedParts
from qlm.simulator.world.watching import Watcher


class SimulatedFleet:
    """Brings agents up and lets them die.

    Attributes:
        instances: By number, in the order of their names.
        operations: What each life of an agent has counted, once it is over.
    """

    def __init__(
        self,
        parts: SharedParts,
        scenario: Scenario,
        workload: Workload,
        clients: Clients,
        settings: AgentSettings,
        watcher: Watcher,
    ) -> None:
        self.instances: Sequence[SimulatedInstance] = sorted(scenario.instances, key=lambda each: each.id)
        self.swaps_warm = 0
        self.swaps_reload = 0
        self.swaps_cold = 0
        self.swap_seconds = 0.0
        self.operations: list[OperationStats] = []
        self._parts = parts
        self._scenario = scenario
        self._clients = clients
        self._settings = settings
        self._watcher = watcher
        self._script = script_of(workload)
        self._contexts = {model.id: model.context_tokens for model in scenario.models}
        self._slowness = [1.0] * len(self.instances)
        self._lives = [0] * len(self.instances)
        self._agents: dict[int, SimulatedAgent] = {}
        self._hosted: dict[tuple[str, ModelId, int], HostedModel] = {}

    def start(self) -> None:
        """Bring all instances up, each with its first model loaded."""
        for number, instance in enumerate(self.instances):
            self._bring_up(number, instance.models[0])

    def number_of(self, instance: InstanceId) -> int:
        """Return an instance's number."""
        return next(n for n, each in enumerate(self.instances) if each.id == instance)

    def kill(self, number: int) -> None:
        """Let an agent die with its engines."""
        agent = self._agents.pop(number, None)
        if agent is not None:
            self._count_swaps(agent)
            agent.kill()

    def restart(self, number: int) -> None:
        """Bring a dead agent up again, with nothing loaded."""
        if number not in self._agents:
            self._bring_up(number, None)

    def kill_engine(self, number: int) -> None:
        """Let the awake engine of an instance die."""
        if number in self._agents:
            self._agents[number].kill_engine()

    def slow_down(self, number: int, factor: float) -> None:
        """Let an instance take `factor` times as long from its next iteration on."""
        self._slowness[number] = factor

    def finish(self) -> None:
        """Add up what the agents that still live have counted."""
        for agent in self._agents.values():
            self._count_swaps(agent)

    def agent(self, number: int) -> AgentProtocol | None:
        """Return the agent protocol of an instance, if it lives."""
        agent = self._agents.get(number)
        return agent.protocol if agent else None

    def running(self, number: int) -> int:
        """Requests in the batch of an instance."""
        agent = self._agents.get(number)
        driver = agent.host.driver if agent else None
        return driver.engine.running if driver else 0

    def kv_usage(self, number: int) -> float:
        """Share of KV blocks in use."""
        agent = self._agents.get(number)
        driver = agent.host.driver if agent else None
        return driver.engine.kv_usage if driver else 0.0

    def awake(self, number: int) -> int:
        """Index of the awake model, or NEVER."""
        agent = self._agents.get(number)
        model = agent.host.awake if agent else None
        return next((n for n, each in enumerate(self._scenario.models) if each.id == model), NEVER)

    def _bring_up(self, number: int, awake: ModelId | None) -> None:
        instance = self.instances[number]
        agent = self._agents[number] = SimulatedAgent(
            self._parts,
            instance,
            number,
            life=self._lives[number],
            settings=self._settings,
            models=self._models(instance),
            host_memory_bytes=self._scenario.fleet.kinds[instance.kind].host_memory_bytes,
            slowness=partial(self._slowness.__getitem__, number),
            submitted=self._clients.submitted_to,
            evicted=self._clients.evicted,
            leased=self._watcher.leased,
        )
        self._lives[number] += 1
        agent.start(awake)

    def _count_swaps(self, agent: SimulatedAgent) -> None:
        self.swaps_warm += agent.host.swaps.warm
        self.swaps_reload += agent.host.swaps.reload
        self.swaps_cold += agent.host.swaps.cold
        self.swap_seconds += agent.host.swaps.seconds
        self.operations.append(agent.protocol.tally.stats())

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
            key = (instance.kind, model, kv_bytes)
            if key not in self._hosted:
                self._hosted[key] = self._host(model, profiles[model], kv_bytes)
            models[model] = self._hosted[key]
        return models

    def _host(self, model: ModelId, profile: Profile, kv_bytes: int) -> HostedModel:
        capacity = capacity_of(profile, self._contexts[model])
        opener: OpenGeneration = scripted_generation(
            self._script, block_tokens=capacity.block_tokens, context_tokens=capacity.context_tokens
        )
        return HostedModel(
            profile=profile,
            capacity=capacity,
            cost=SwapCost.of(profile, host_kv_bytes=kv_bytes),
            kv_cost=KvSwapCost.of(profile, kv_bytes),
            new_engine=partial(BatchingEngine, profile, capacity, opener, host_kv_bytes=kv_bytes),
        )


def capacity_of(profile: Profile, context_tokens: int) -> EngineCapacity:
    """What an engine of this profile can hold, if its model is served with so long a context."""
    return EngineCapacity(
        kv_tokens=profile.kv_tokens,
        block_tokens=profile.block_tokens,
        seqs_max=profile.seqs_max,
        context_tokens=min(profile.context_tokens, context_tokens, profile.kv_tokens),
    )
