"""Agents under Ray, from the configuration: what each takes, what runs in its process, who sees to them."""

import asyncio
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from qlm.agents.ray.cluster import AgentSpec, RayCluster
from qlm.agents.ray.placement import Resources, emulated_accelerators, offered, real_accelerators
from qlm.agents.ray.supervisor import Supervisor
from qlm.cli.clock import SystemClock
from qlm.cli.config import Config, InstanceConfig
from qlm.cli.config_errors import ConfigError
from qlm.cli.logs import LogFormat, log_to_stderr
from qlm.cli.parts import Parts, open_parts
from qlm.cli.serving import RESTART_PAUSE_S, monitoring, serve_instance, sweep_engines
from qlm.cli.telemetry import open_telemetry
from qlm.cli.wiring import load_profiles
from qlm.domain.errors import QlmError

log = logging.getLogger("qlm.cli")


def check_servers(config: Config, where: str) -> None:
    """Refuse the embedded queue: agents under Ray are processes of their own, perhaps on other machines.

    Raises:
        ConfigError: With what to give instead.
    """
    if config.embedded:
        raise ConfigError(
            f"{where}: broker is 'sqlite'; expected an amqp:// address and store a redis:// one "
            "(say, --broker amqp://guest:guest@127.0.0.1/ --store redis://127.0.0.1/0), "
            "since agents under Ray are processes of their own"
        )


def ray_cluster(config: Config) -> RayCluster:
    """Describe the Ray cluster to run on; entering it connects or starts."""
    wanted = [resources_of(config, instance) for instance in config.instances]
    return RayCluster(address=config.ray.address, namespace=config.ray.namespace, offers=offered(wanted))


def supervision(
    config: Config, cluster: RayCluster, log_level: int, log_format: LogFormat = "text"
) -> Callable[[Parts], Coroutine[Any, Any, None]]:
    """Return what keeps the agents of all instances running on a cluster."""
    specs = [agent_spec(config, instance, log_level, log_format) for instance in config.instances]
    return lambda parts: Supervisor(cluster, specs, parts.store.ask_drain, parts.store.say_unplaced).run()


def resources_of(config: Config, instance: InstanceConfig) -> Resources:
    """What an instance takes from its node: as configured for its kind, else GPUs if they are needed."""
    configured = config.ray.resources.get(instance.kind)
    if configured is not None:
        return configured
    engines = {model.engine for model in config.models if model.id in instance.models}
    if instance.url is None and "vllm" in engines and not config.vllm.cpu:
        return real_accelerators(instance.accelerator, instance.gpus)
    return emulated_accelerators(instance.accelerator, instance.gpus)


def agent_spec(
    config: Config, instance: InstanceConfig, log_level: int, log_format: LogFormat = "text"
) -> AgentSpec:
    """Describe the agent of an instance."""
    own = _of_instance(_absolute(config), instance)
    return AgentSpec(
        instance=instance.id,
        resources=resources_of(config, instance),
        work=functools.partial(run_agent, own, log_level, log_format=log_format),
        recipe=_recipe(own),
    )


async def run_agent(config: Config, log_level: int, log_format: LogFormat) -> None:
    """Run the agent of the only instance of a configuration until it is drained; in a process of Ray's."""
    log_to_stderr(log_level, log_format)
    _forget_threads_of_ray()
    (instance,) = config.instances
    clock, profiles = SystemClock(), load_profiles(config.profiles)
    async with AsyncExitStack() as lasting:
        telemetry = open_telemetry(config, clock, lasting, part="agent", controller=False, agents=True)
        await lasting.enter_async_context(monitoring(config, telemetry))
        while True:
            try:
                async with AsyncExitStack() as stack:
                    opened = await open_parts(config, clock, stack)
                    parts = await stack.enter_async_context(telemetry.health.watching(opened))
                    await sweep_engines(config)
                    await serve_instance(config, instance, parts, profiles, clock, telemetry)
                    return
            except QlmError as error:
                log.error("%s: %s", instance.id, error)
                await asyncio.sleep(RESTART_PAUSE_S)


def _of_instance(config: Config, instance: InstanceConfig) -> Config:
    """Leave out what an agent does not read: a change elsewhere is none of its business."""
    models = tuple(model for model in config.models if model.id in instance.models)
    read = {
        "data_dir", "broker", "broker_ack_timeout_s", "store", "store_prefix", "operations", "vllm",
        "emulate", "profiles", "monitor", "tracing", "stop",
    }  # fmt: skip
    kept = {name: getattr(config, name) for name in read}
    return Config(models=models, instances=(instance,), **kept)


def _absolute(config: Config) -> Config:
    """Resolve paths here: a process of Ray's has another working directory."""
    models = tuple(
        model.model_copy(update={"path": model.path.absolute()}) if model.path else model
        for model in config.models
    )
    python = config.vllm.python
    if len(python.parts) > 1:  # a bare name is looked up where the agent runs
        python = python.absolute()
    patches = config.vllm.pythonpath and config.vllm.pythonpath.absolute()
    vllm = config.vllm.model_copy(update={"python": python, "pythonpath": patches})
    folders = tuple(folder.absolute() for folder in config.profiles)
    here = {"models": models, "vllm": vllm, "profiles": folders, "data_dir": config.data_dir.absolute()}
    return config.model_copy(update=here)


def _recipe(config: Config) -> str:
    told = json.dumps([version("qlm-serving"), config.model_dump(mode="json")], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _forget_threads_of_ray() -> None:
    """Let engines use the processors they find: Ray limits its workers, and they would inherit it."""
    begun_with = Path("/proc/self/environ").read_bytes().split(b"\0")
    if not any(each.startswith(b"OMP_NUM_THREADS=") for each in begun_with):
        os.environ.pop("OMP_NUM_THREADS", None)
