"""Agents under Ray, from the configuration: resources, process and supervision of each."""

import asyncio
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from qlm.agents.core.node_placement import Resources, emulated_resources, gpu_resources, resources_to_offer
from qlm.agents.ray.cluster import AgentSpec, RayCluster
from qlm.agents.ray.supervisor import Supervisor
from qlm.cli.config.addresses import secret_variables
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.fleet import InstanceConfig
from qlm.cli.config.listeners.admin import AdminConfig
from qlm.cli.config.settings import Config
from qlm.cli.runtime.backends import Backends, open_backends
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.logs import LogFormat, log_to_stderr
from qlm.cli.runtime.serving import RESTART_PAUSE_S, kill_orphaned_engines, monitoring, serve_instance
from qlm.cli.runtime.telemetry import open_telemetry
from qlm.cli.runtime.wiring import load_profiles
from qlm.domain.errors import QlmError
from qlm.domain.shell.faults import FaultLog
from qlm.domain.shell.heap import settle_heap

log = logging.getLogger("qlm.cli")


def check_servers(config: Config, where: str) -> None:
    """Raise ConfigError for the embedded queue: agents under Ray are separate processes."""
    if config.embedded:
        raise ConfigError(
            f"{where}: broker is 'sqlite'; expected an amqp:// address and store a redis:// one "
            "(say, --broker amqp://guest:guest@127.0.0.1/ --store redis://127.0.0.1/0), "
            "since agents under Ray are processes of their own"
        )


def ray_cluster(config: Config) -> RayCluster:
    """Return the Ray cluster to run on; entering it connects to it or starts it."""
    wanted = [resources_of(config, instance) for instance in config.instances]
    return RayCluster(
        address=config.ray.address, namespace=config.ray.namespace, offers=resources_to_offer(wanted)
    )


def supervision(
    config: Config, cluster: RayCluster, log_level: int, log_format: LogFormat = "text"
) -> Callable[[Backends, FaultLog], Coroutine[Any, Any, None]]:
    """Return the work that keeps the agents of all instances running on a cluster."""
    specs = [agent_spec(config, instance, log_level, log_format) for instance in config.instances]
    return lambda backends, faults: Supervisor(
        cluster, specs, backends.store.ask_drain, backends.store.report_unplaced, faults
    ).run()


def resources_of(config: Config, instance: InstanceConfig) -> Resources:
    """Return the resources of an instance on its node: as configured, else GPUs if they are needed."""
    configured = config.ray.resources.get(instance.kind)
    if configured is not None:
        return configured
    engines = {model.engine for model in config.models if model.id in instance.models}
    if instance.url is None and "vllm" in engines and not config.vllm.cpu:
        return gpu_resources(instance.accelerator, instance.gpus)
    return emulated_resources(instance.accelerator, instance.gpus)


def agent_spec(
    config: Config, instance: InstanceConfig, log_level: int, log_format: LogFormat = "text"
) -> AgentSpec:
    """Return the specification of the agent of an instance."""
    own = _of_instance(_absolute(config), instance)
    secrets = tuple(sorted(secret_variables(config)))
    return AgentSpec(
        instance=instance.id,
        resources=resources_of(config, instance),
        work=functools.partial(run_agent, own, log_level, log_format=log_format, withheld=secrets),
        config_hash=_config_hash(own, secrets),
    )


async def run_agent(
    config: Config, log_level: int, log_format: LogFormat, withheld: Collection[str] = ()
) -> None:
    """Run the agent of a configuration's only instance until it is drained, in a process of Ray.

    Args:
        config: What the agent reads of the configuration.
        log_level: Level of its log.
        log_format: Format of its log.
        withheld: Names of variables that its engines do not inherit, from the whole configuration.
    """
    log_to_stderr(log_level, log_format)
    _remove_thread_limit_of_ray()
    (instance,) = config.instances
    clock, profiles = SystemClock(), load_profiles(config.profiles)
    async with AsyncExitStack() as lasting:
        telemetry = open_telemetry(
            config, clock, lasting, part="agent", controller=False, instances=[instance.id]
        )
        await lasting.enter_async_context(monitoring(config, telemetry))
        settle_heap()
        said = ""
        while True:
            try:
                async with AsyncExitStack() as stack:
                    opened = await open_backends(
                        config, clock, stack, telemetry.faults, outage=telemetry.health.broker_outage
                    )
                    backends = await stack.enter_async_context(telemetry.health.watching(opened))
                    await kill_orphaned_engines(config)
                    # Ray would start a new process again and again.
                    await serve_instance(
                        config, instance, backends, profiles, clock, telemetry, withheld, patient=True
                    )
                    return
            except QlmError as error:
                if str(error) != said:  # an outage is one line, not one for each try
                    said = str(error)
                    log.error("%s: %s", instance.id, said)
                await asyncio.sleep(RESTART_PAUSE_S)


def _of_instance(config: Config, instance: InstanceConfig) -> Config:
    """Leave out keys that an agent does not read, so that a change of them does not replace it."""
    models = tuple(model for model in config.models if model.id in instance.models)
    read = {
        "data_dir", "broker", "broker_ack_timeout_s", "store", "deployment_name", "store_prefix",
        "operations", "vllm", "emulate", "profiles", "monitor", "connections", "tracing", "stop",
    }  # fmt: skip
    kept = {name: getattr(config, name) for name in read & config.model_fields_set}
    admin = AdminConfig(token=config.admin.token)
    return Config(models=models, instances=(instance,), admin=admin, **kept)


def _absolute(config: Config) -> Config:
    """Resolve paths here, since a process of Ray has another working directory."""
    models = tuple(
        model.model_copy(
            update={
                key: path.absolute()
                for key, path in (("path", model.path), ("config", model.config))
                if path is not None
            }
        )
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


def _config_hash(config: Config, secrets: Sequence[str]) -> str:
    read = [version("qlm-serving"), config.model_dump(mode="json"), *secrets]
    text = json.dumps(read, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _remove_thread_limit_of_ray() -> None:
    """Remove the thread limit that Ray sets for its workers, which engines would inherit."""
    initial = Path("/proc/self/environ").read_bytes().split(b"\0")
    if not any(each.startswith(b"OMP_NUM_THREADS=") for each in initial):
        os.environ.pop("OMP_NUM_THREADS", None)
