"""Loading of a scenario: its file, profiles and traces are read and checked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qlm.cli.config.errors import ConfigError
from qlm.cli.config.fleet import InstanceConfig, ModelConfig
from qlm.cli.config.settings import Config
from qlm.cli.runtime.wiring import GIB, fleet, load_profiles
from qlm.cli.scenario.sections import FaultSection
from qlm.cli.scenario.stream_building import Names, build_stream, trace_source
from qlm.cli.scenario.streams import StreamSection
from qlm.cli.scenario.yaml import ScenarioFile, name_of, read_scenario_file
from qlm.cli.speed.choice import warn_of_profiles
from qlm.controller.core.decide import ControllerSettings
from qlm.controller.core.fleet import Fleet
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import ModelSpec
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.operations import SwapTier
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.engine.host_cache import KvOffloading
from qlm.simulator.scenario import (
    BrokerOutage,
    Fault,
    KillEngine,
    KillInstance,
    Network,
    PastTraffic,
    PauseController,
    Scenario,
    SimulatedInstance,
    SloClass,
    SlowInstance,
    StoreOutage,
)
from qlm.simulator.workload.maker import WorkloadMaker
from qlm.simulator.workload.reading import TraceSource, read_trace
from qlm.simulator.workload.trace import Trace


def load_scenario(path: Path, *, load: float = 1.0) -> Scenario:
    """Read a scenario file, with its profiles and traces.

    Args:
        path: The file.
        load: Factor on all arrival rates, and divisor of the times of traces; positive.

    Raises:
        ConfigError: One message with file, key (or line), value and expectation.
    """
    if not 0 < load <= 1000:
        raise ConfigError(f"load is {load!r}; expected a number above 0, up to 1000")
    file = read_scenario_file(path)
    try:
        return _scenario(file, load)
    except (ConfigError, InvalidValueError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _scenario(file: ScenarioFile, load: float) -> Scenario:
    instances = _instances(file)
    _check_token_budgets(instances)
    config, profiles = _as_config(file, instances), load_profiles(file.profiles)
    costs = _with_scheduling(file, fleet(config, profiles))
    warn_of_profiles(config.models, instances, profiles)
    models = _models(file, costs)
    _check_memory(instances, costs)
    _check_offloading(file, instances)
    return Scenario(
        name=file.name,
        models=models,
        instances=tuple(
            replace(_simulated(instance), awake=awake)
            for instance, awake in zip(instances, _awake(file), strict=True)
        ),
        fleet=costs,
        slo_classes=tuple(
            SloClass(name=name, slo=section.slo(), priority=section.priority, on_miss=section.on_miss)
            for name, section in file.slo_classes.items()
        ),
        true_profiles=_true_profiles(file, costs),
        make_workload=_workload(file, file.workload, models, load),
        past=_past(file, models, load),
        capacity_rps=file.capacity_rps,
        network=Network(
            store_s=file.network.store_ms / 1000,
            broker_s=file.network.broker_ms / 1000,
            notice_s=file.network.notice_ms / 1000,
        ),
        faults=tuple(_fault(section) for section in file.faults),
        controller=ControllerSettings(**file.controller.model_dump()),
        queue_depth_max=file.limits.queue_depth_max,
        host_kv_bytes=round(file.limits.host_kv_gib * GIB),
        kv_offloading=KvOffloading(
            writes_through=file.limits.host_kv_write_through, overlaps=file.limits.host_kv_overlap
        ),
        append_interval_s=file.limits.append_interval_ms / 1000,
        horizon_s=file.limits.horizon_s,
        warm_up_s=file.limits.warm_up_s,
    )


def _instances(file: ScenarioFile) -> tuple[InstanceConfig, ...]:
    return tuple(
        InstanceConfig(
            id=name,
            accelerator=section.accelerator,
            gpus=section.gpus,
            models=section.models,
            host_memory_gib=section.host_memory_gib,
            swap_tiers=section.swap_tiers,
            batched_tokens_max=section.batched_tokens_max,
            batching=section.batching,
            batching_by=section.batching_by,
        )
        for section in file.instances
        for name in section.ids
    )


def _awake(file: ScenarioFile) -> Iterator[ModelId | None]:
    """Yield the model that each instance starts with, where the file sets one.

    Raises:
        ConfigError: The instance does not serve it.
    """
    for index, section in enumerate(file.instances):
        if section.awake is not None and section.awake not in section.models:
            raise ConfigError(
                f"instances.{index}.awake is {section.awake!r}; "
                f"expected one of its models: {', '.join(section.models)}"
            )
        for _ in section.ids:
            yield None if section.awake is None else ModelId(section.awake)


def _as_config(file: ScenarioFile, instances: Sequence[InstanceConfig]) -> Config:
    models = tuple(
        ModelConfig(id=model.id, profile=model.profile, config=model.config) for model in file.models
    )
    # Its lists are checked already; a simulation has no limit on instances.
    return Config.model_construct(models=models, instances=tuple(instances))


def _with_scheduling(file: ScenarioFile, costs: Fleet) -> Fleet:
    """Return the fleet with the way of scheduling that the file sets for a model."""
    ways = {model.id: model.async_scheduling for model in file.models if model.async_scheduling is not None}
    profiles = {
        key: replace(profile, async_scheduling=ways.get(key[0], profile.async_scheduling))
        for key, profile in costs.profiles.items()
    }
    return replace(costs, profiles=profiles)


def _true_profiles(file: ScenarioFile, costs: Fleet) -> Mapping[tuple[ModelId, str], Profile]:
    """Return the profiles by which engines run, where they differ from those of the fleet."""
    true = dict(costs.profiles)
    for error in file.profile_errors:
        for (model, kind), profile in true.items():
            if error.model in (None, model) and error.accelerator in (None, profile.accelerator):
                true[model, kind] = with_errors(profile, iterations=error.iterations, swaps=error.swaps)
    return {key: profile for key, profile in true.items() if profile is not costs.profiles[key]}


def with_errors(profile: Profile, *, iterations: float, swaps: float) -> Profile:
    """Return a profile with the times of iterations and of model swaps multiplied."""
    return replace(
        profile,
        iteration=profile.iteration.scaled(iterations),
        swap_warm_s=profile.swap_warm_s * swaps,
        swap_reload_s=profile.swap_reload_s * swaps,
        swap_cold_s=profile.swap_cold_s * swaps,
        unload_s=profile.unload_s * swaps,
    )


def _simulated(instance: InstanceConfig) -> SimulatedInstance:
    return SimulatedInstance(
        id=InstanceId(instance.id),
        kind=instance.kind,
        models=tuple(ModelId(model) for model in instance.models),
        swap_tiers=tuple(SwapTier(tier) for tier in instance.swap_tiers),
        batching=instance.batching,
        aborts=instance.batching_by == "aborts",
    )


def _models(file: ScenarioFile, costs: Fleet) -> tuple[ModelSpec, ...]:
    """Return the models, each with the context length that all its instances support.

    Raises:
        ConfigError: The file sets a longer one.
    """
    specs = []
    for index, model in enumerate(file.models):
        room = [(_context(p), p) for (name, _), p in costs.profiles.items() if name == model.id]
        tokens_max, tightest = min(room, key=lambda each: each[0])
        if model.context_tokens is not None and model.context_tokens > tokens_max:
            raise ConfigError(
                f"models.{index}.context_tokens is {model.context_tokens}; expected at most {tokens_max}, "
                f"what {tightest.gpus} {tightest.accelerator} can serve of {model.id}"
            )
        tokens = model.context_tokens or tokens_max
        specs.append(ModelSpec(id=ModelId(model.id), tokenizer="byte", context_tokens=tokens))
    return tuple(specs)


def _context(profile: Profile) -> int:
    return min(profile.context_tokens, profile.kv_tokens - profile.block_tokens)


def _check_token_budgets(instances: Sequence[InstanceConfig]) -> None:
    """Check that instances of one kind have one token budget: a simulation has one profile for them all.

    Raises:
        ConfigError: Two of them differ.
    """
    first: dict[str, InstanceConfig] = {}
    for instance in instances:
        same = first.setdefault(instance.kind, instance)
        if instance.batched_tokens_max != same.batched_tokens_max:
            raise ConfigError(
                f"instances has {instance.id!r} with batched_tokens_max {instance.batched_tokens_max}; "
                f"expected {same.batched_tokens_max}, as {same.id!r} of the same kind {instance.kind} has"
            )


def _check_memory(instances: Sequence[InstanceConfig], costs: Fleet) -> None:
    for instance in instances:
        for model in instance.models:
            profile = costs.profiles[ModelId(model), instance.kind]
            needed = profile.weights_bytes + profile.kv_tokens * profile.kv_bytes_per_token
            if needed > profile.accelerator_memory_bytes:
                raise ConfigError(
                    f"instances has {instance.id!r} with the model {model!r}, whose profile needs "
                    f"{needed / 1e9:.1f} GB for weights and KV cache; expected at most the "
                    f"{profile.accelerator_memory_bytes / 1e9:.1f} GB of {instance.kind}"
                )


def _check_offloading(file: ScenarioFile, instances: Sequence[InstanceConfig]) -> None:
    without = [each.id for each in instances if each.engine_batching is None]
    if without and not file.limits.host_kv_write_through:
        raise ConfigError(
            "limits.host_kv_write_through is false; expected true, or batching for all engines: only batch "
            f"policies write KV blocks late, and {', '.join(without)} has none"
        )


def _past(file: ScenarioFile, models: Sequence[ModelSpec], load: float) -> PastTraffic | None:
    if file.history is None:
        return None
    maker = _workload(file, file.history.workload, models, load, prefix="history.")
    return PastTraffic(make_workload=maker, age_s=file.history.age_s)


def _workload(
    file: ScenarioFile,
    sections: Sequence[StreamSection],
    models: Sequence[ModelSpec],
    load: float,
    prefix: str = "",
) -> WorkloadMaker:
    """Return the streams; `prefix` before their names gives them random numbers of their own."""
    names = Names(
        models={model.id: index for index, model in enumerate(models)},
        slo_classes={name: index for index, name in enumerate(file.slo_classes)},
        traces=_traces(file, sections),
    )
    streams = tuple(
        build_stream(prefix + name_of(index, stream), stream, names) for index, stream in enumerate(sections)
    )
    return WorkloadMaker(
        streams=streams, context_tokens=tuple(model.context_tokens for model in models), load=load
    )


def _traces(file: ScenarioFile, sections: Sequence[StreamSection]) -> Mapping[str, Trace]:
    """Read each trace that a stream uses, once."""
    used = {name for s in sections for name in (s.arrivals.trace, s.lengths.trace) if name is not None}
    sources = {name: trace_source(section) for name, section in file.traces.items() if name in used}
    return {name: _trace(f"traces.{name}", source) for name, source in sources.items()}


def _trace(key: str, source: TraceSource) -> Trace:
    try:
        return read_trace(source)
    except InvalidValueError as error:
        raise ConfigError(f"{key}: {error}") from error


def _fault(section: FaultSection) -> Fault:
    if (kill := section.kill_instance) is not None:
        return KillInstance(at_s=kill.at_s, instance=InstanceId(kill.instance), down_s=kill.down_s)
    if (engine := section.kill_engine) is not None:
        return KillEngine(at_s=engine.at_s, instance=InstanceId(engine.instance))
    if (slow := section.slow_instance) is not None:
        name = InstanceId(slow.instance)
        return SlowInstance(at_s=slow.at_s, instance=name, for_s=slow.for_s, factor=slow.factor)
    if (pause := section.pause_controller) is not None:
        return PauseController(at_s=pause.at_s, for_s=pause.for_s)
    if (store := section.store_outage) is not None:
        return StoreOutage(at_s=store.at_s, for_s=store.for_s)
    broker = section.broker_outage
    assert broker is not None
    return BrokerOutage(at_s=broker.at_s, for_s=broker.for_s)
