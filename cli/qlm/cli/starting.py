"""Start of parts of QLM by a command line: configuration, roles, and the process until it ends."""

import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qlm.cli.config.addresses import merged, of_environment
from qlm.cli.config.default import emulated_config, vllm_config
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.listeners.access import check_listeners
from qlm.cli.config.settings import Config, load_config
from qlm.cli.processes.ending import limited_end, run_process
from qlm.cli.profiling.used_beyond import lines_of_config
from qlm.cli.runtime.logs import LogFormat, log_to_stderr, say_last
from qlm.cli.runtime.ray import check_servers, ray_cluster, supervision
from qlm.cli.runtime.serving import Roles, serve
from qlm.cli.runtime.wiring import check
from qlm.domain.errors import QlmError
from qlm.domain.shell.damage import NO_CONSENT, Consent
from qlm.domain.shown import shown

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Logging:
    """Logging options as given on the command line."""

    level: str
    format: LogFormat

    def number(self) -> int:
        """Return the level as a number; raise ConfigError for an unknown name."""
        level = logging.getLevelNamesMapping().get(self.level.upper())
        if level is None:
            raise ConfigError(f"--log-level is {self.level!r}; expected debug, info, warning or error")
        return level


def serve_config(
    config_file: Path | None,
    overrides: Mapping[str, Any],
    *,
    vllm: Path | None,
    vllm_python: Path | None,
    vllm_pythonpath: Path | None,
    vllm_cpu: bool,
    vllm_render: str | None,
    ray_address: str | None,
) -> Config:
    """Load the configuration of `qlm serve`: that of a file, of a real vLLM, or the built-in one.

    Args:
        config_file: The file; None for none.
        overrides: Keys that the command line sets.
        vllm: Folder of a model for a real vLLM; with the options of that vLLM.
        vllm_python: Its Python.
        vllm_pythonpath: Folder put before its Python path.
        vllm_cpu: It is the build for CPUs.
        vllm_render: Arguments of its render tier; None for none.
        ray_address: An address of Ray that was given for agents without Ray.

    Raises:
        ConfigError: Options contradict each other, or the file is invalid.
    """
    if vllm is None:
        _refuse({"python": vllm_python, "pythonpath": vllm_pythonpath, "render": vllm_render})
    if ray_address is not None:
        raise ConfigError(f"--ray-address is {ray_address!r} without --runtime ray; expected both")
    if config_file is not None:
        if vllm is not None:
            raise ConfigError("give --config or --vllm, not both")
        return load_config(config_file, dict(overrides))
    built_in = merged(of_environment(os.environ), dict(overrides))
    if vllm is not None:
        return vllm_config(
            vllm,
            vllm_python or Path(sys.executable),
            cpu=vllm_cpu,
            pythonpath=vllm_pythonpath,
            render_args=None if vllm_render is None else _words(vllm_render),
            overrides=built_in,
        )
    return emulated_config(built_in)


def _refuse(of_vllm: Mapping[str, object]) -> None:
    """Refuse options of a real vLLM where there is none."""
    for option, given in of_vllm.items():
        if given is not None:
            raise ConfigError(f"--vllm-{option} is {str(given)!r} without --vllm; expected both")


def _words(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError as error:
        why = str(error).lower()
        raise ConfigError(
            f"--vllm-render is {shown(arguments)}; expected arguments as a shell reads them ({why})"
        ) from error


def serve_roles(config: Config, where: Path | None, *, agents: bool, runtime: str) -> Roles:
    """Return what `qlm serve` runs.

    Raises:
        ConfigError: Ray needs servers, and the configuration has none.
    """
    if not agents:
        return Roles(True, True, ())
    if runtime == "ray":
        check_servers(config, str(where or "the built-in configuration"))
        return Roles(True, True, (), ray=True)
    return Roles(True, True, tuple(instance.id for instance in config.instances))


def agent_roles(config: Config, where: Path | None, instance: str) -> Roles:
    """Return what `qlm agent` runs.

    Raises:
        ConfigError: The configuration has no such instance.
    """
    known = [i.id for i in config.instances]
    if instance not in known:
        raise ConfigError(f"{where}: no instance {instance!r}; expected one of {', '.join(known)}")
    return Roles(False, False, (instance,))


def run(
    configure: Callable[[], Config],
    logs: Logging,
    where: Path | None,
    roles: Callable[[Config], Roles],
    consent: Consent = NO_CONSENT,
) -> None:
    """Load the configuration and serve until stopped.

    A bad configuration gives one line and exit code 2; another error one line and 1.
    """
    try:
        level = logs.number()
        config = configure()
        chosen = roles(config)
        check(config, str(where or "the command line"), chosen.instances)
        check_listeners(
            config,
            str(where or "the command line"),
            gateway=chosen.gateway,
            monitor=chosen.ray or not chosen.gateway,
        )
    except ConfigError as error:
        say_last(error, logs.format)
        sys.exit(2)
    log_to_stderr(level, logs.format)
    if config.store_prefix is not None:
        _log.warning("store_prefix is replaced by deployment_name; it is read in this version only")
    if chosen.controller:
        for line in lines_of_config(config):
            _log.warning(line)
    with limited_end():
        sys.exit(_run(config, chosen, level, logs.format, consent))


def _run(config: Config, roles: Roles, level: int, log_format: LogFormat, consent: Consent) -> int:
    try:
        if roles.ray:
            with ray_cluster(config) as cluster:
                beside = supervision(config, cluster, level, log_format)
                run_process(serve(config, roles, beside, consent, log_format))
        else:
            run_process(serve(config, roles, None, consent, log_format))
    except QlmError as error:
        say_last(error, log_format)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def cluster_config(config_file: Path | None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Load the configuration of parts in several processes.

    Raises:
        ConfigError: It is invalid, or its queue is embedded.
    """
    if config_file is None:
        raise ConfigError("this part needs --config FILE with the addresses of RabbitMQ and Redis")
    config = load_config(config_file, overrides or {})
    if config.embedded:
        raise ConfigError(
            f"{config_file}: broker is 'sqlite'; expected an amqp:// address, since parts in several "
            "processes share a queue (use `qlm serve` for one process)"
        )
    return config
