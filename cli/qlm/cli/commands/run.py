"""Commands that run parts of QLM: serve, gateway, controller, agent, agents, emulate."""

import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click
import uvloop

from qlm.cli.config.access import check_listeners
from qlm.cli.config.addresses import merged, of_environment
from qlm.cli.config.default import emulated_config, vllm_config
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.settings import Config, load_config
from qlm.cli.profiling.used_beyond import lines_of_config
from qlm.cli.runtime.logs import LogFormat, log_to_stderr, say_last
from qlm.cli.runtime.ray import check_servers, ray_cluster, supervision
from qlm.cli.runtime.serving import Roles, serve
from qlm.cli.runtime.wiring import check
from qlm.domain.errors import QlmError
from qlm.domain.shell.damage import NO_CONSENT, Consent, consent_to
from qlm.domain.shell.tasks import run_to_end

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


CONFIG_PATH = click.Path(exists=False, dir_okay=False, path_type=Path)


def common(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that all commands running a part share."""
    for option in (
        click.option("--log-level", default="info", show_default=True, help="debug, info, warning or error."),
        click.option(
            "--log-format",
            type=click.Choice(get_args(LogFormat)),
            default="text",
            show_default=True,
            help="Lines for people, or a JSON object per line.",
        ),
        click.option("--config", "config_file", type=CONFIG_PATH, help="Configuration file (YAML)."),
    ):
        command = option(command)
    return command


HOST = click.option("--host", help="Address to listen on, for HTTP and for gRPC.")

PORT = click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on.")

GRPC_PORT = click.option(
    "--grpc-port", type=click.IntRange(0, 65535), help="Port to listen on for gRPC; 0 for none."
)

ADMIN_PORT = click.option(
    "--admin-port", type=click.IntRange(0, 65535), help="Port to listen on for operators; 0 for none."
)

RAY_ADDRESS = click.option(
    "--ray-address",
    help="A node of a running Ray cluster (host:port), or auto; without it, Ray is started here.",
)


@click.command("serve")
@common
@HOST
@PORT
@GRPC_PORT
@ADMIN_PORT
@click.option("--data-dir", type=click.Path(file_okay=False), help="Folder of the embedded queue.")
@click.option(
    "--accept-damage",
    multiple=True,
    metavar="CODE",
    help="Go on without what a named damage of the embedded queue has lost; its error has the code.",
)
@click.option("--broker", help="The queue: sqlite, or the amqp:// address of a RabbitMQ.")
@click.option("--store", help="The shared state: embedded, or the redis:// address of a Redis.")
@click.option("--agents/--no-agents", default=True, help="Run the agents; without them, requests only wait.")
@click.option(
    "--runtime",
    type=click.Choice(["process", "ray"]),
    default="process",
    show_default=True,
    help="Run the agents in this process, or each as an actor of Ray.",
)
@RAY_ADDRESS
@click.option(
    "--vllm", type=click.Path(path_type=Path), help="Serve the model in this directory with a real vLLM."
)
@click.option(
    "--vllm-python", type=click.Path(path_type=Path), help="Python of the environment that has vLLM."
)
@click.option("--vllm-pythonpath", type=click.Path(path_type=Path), help="Folder put before its Python path.")
@click.option("--vllm-cpu/--vllm-gpu", default=True, show_default=True, help="Build of that vLLM.")
@click.option(
    "--vllm-render",
    help="Start a render tier, for tools and JSON by schema, with these arguments of vLLM's (may be empty).",
)
def serve_command(
    config_file: Path | None,
    log_level: str,
    log_format: LogFormat,
    host: str | None,
    port: int | None,
    grpc_port: int | None,
    admin_port: int | None,
    data_dir: str | None,
    accept_damage: tuple[str, ...],
    broker: str | None,
    store: str | None,
    agents: bool,
    runtime: str,
    ray_address: str | None,
    vllm: Path | None,
    vllm_python: Path | None,
    vllm_pythonpath: Path | None,
    vllm_cpu: bool,
    vllm_render: str | None,
) -> None:
    """Run everything on this machine: gateway, controller, and an agent per instance.

    Without a configuration file three emulated models share one A10 and two A100.
    """
    overrides = _overrides_of_listeners(host, port, grpc_port, admin_port)
    given = {"data_dir": data_dir, "broker": broker, "store": store}
    overrides |= {key: value for key, value in given.items() if value is not None}
    overrides |= _ray_overrides(ray_address)

    def configure() -> Config:
        if ray_address is not None and runtime != "ray":
            raise ConfigError(f"--ray-address is {ray_address!r} without --runtime ray; expected both")
        if config_file is not None:
            if vllm is not None:
                raise ConfigError("give --config or --vllm, not both")
            return load_config(config_file, overrides)
        built_in = merged(of_environment(os.environ), overrides)
        if vllm is not None:
            return vllm_config(
                vllm,
                vllm_python or Path(sys.executable),
                cpu=vllm_cpu,
                pythonpath=vllm_pythonpath,
                render_args=None if vllm_render is None else shlex.split(vllm_render),
                overrides=built_in,
            )
        return emulated_config(built_in)

    def roles(config: Config) -> Roles:
        if not agents:
            return Roles(True, True, ())
        if runtime == "ray":
            check_servers(config, str(config_file or "the built-in configuration"))
            return Roles(True, True, (), ray=True)
        return Roles(True, True, tuple(instance.id for instance in config.instances))

    run(configure, Logging(log_level, log_format), config_file, roles, consent_to(accept_damage))


@click.command("gateway")
@common
@HOST
@PORT
@GRPC_PORT
@ADMIN_PORT
def gateway_command(
    config_file: Path | None,
    log_level: str,
    log_format: LogFormat,
    host: str | None,
    port: int | None,
    grpc_port: int | None,
    admin_port: int | None,
) -> None:
    """Run a gateway with its HTTP, gRPC and admin listeners. Needs RabbitMQ and Redis."""
    overrides = _overrides_of_listeners(host, port, grpc_port, admin_port)
    run(
        lambda: cluster_config(config_file, overrides),
        Logging(log_level, log_format),
        config_file,
        lambda _: Roles(True, False, ()),
    )


@click.command("controller")
@common
def controller_command(config_file: Path | None, log_level: str, log_format: LogFormat) -> None:
    """Run the controller: grouping and planning. Needs RabbitMQ and Redis."""
    run(
        lambda: cluster_config(config_file),
        Logging(log_level, log_format),
        config_file,
        lambda _: Roles(False, True, ()),
    )


@click.command("agent")
@common
@click.argument("instance")
def agent_command(config_file: Path | None, log_level: str, log_format: LogFormat, instance: str) -> None:
    """Run the agent of INSTANCE beside its engines. Needs RabbitMQ and Redis."""

    def roles(config: Config) -> Roles:
        known = [i.id for i in config.instances]
        if instance not in known:
            raise ConfigError(f"{config_file}: no instance {instance!r}; expected one of {', '.join(known)}")
        return Roles(False, False, (instance,))

    run(lambda: cluster_config(config_file), Logging(log_level, log_format), config_file, roles)


@click.command("agents")
@common
@RAY_ADDRESS
def agents_command(
    config_file: Path | None, log_level: str, log_format: LogFormat, ray_address: str | None
) -> None:
    """Run the agents of all instances as Ray actors. Needs RabbitMQ and Redis."""
    run(
        lambda: cluster_config(config_file, _ray_overrides(ray_address)),
        Logging(log_level, log_format),
        config_file,
        lambda _: Roles(False, False, (), ray=True),
    )


@click.command(
    "emulate",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.pass_context
def emulate_command(context: click.Context) -> None:
    """Run an emulated engine: vLLM's API with the speed of a given accelerator."""
    try:
        from qlm.simulator.emulation import command
    except ImportError as error:
        click.echo(f"qlm: emulate needs {error.name}, which is not installed here", err=True)
        sys.exit(1)
    sys.exit(command.main(context.args))


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
        check(config, str(where or "the command line"))
        chosen = roles(config)
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
    sys.exit(_run(config, chosen, level, logs.format, consent))


def _run(config: Config, roles: Roles, level: int, log_format: LogFormat, consent: Consent) -> int:
    try:
        if roles.ray:
            with ray_cluster(config) as cluster:
                beside = supervision(config, cluster, level, log_format)
                uvloop.run(run_to_end(serve(config, roles, beside, consent, log_format), _exit_at_once))
        else:
            uvloop.run(run_to_end(serve(config, roles, None, consent, log_format), _exit_at_once))
    except QlmError as error:
        say_last(error, log_format)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def _exit_at_once() -> None:
    """Exit in spite of tasks that do not end; engines end with their guards."""
    logging.shutdown()
    os._exit(1)


def _overrides_of_listeners(
    host: str | None, port: int | None, grpc_port: int | None, admin_port: int | None
) -> dict[str, Any]:
    overrides = _listener_overrides("http", host, port) | _listener_overrides("grpc", host, grpc_port)
    return overrides | _listener_overrides("admin", None, admin_port)


def _listener_overrides(section: str, host: str | None, port: int | None) -> dict[str, Any]:
    given = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    return {section: given} if given else {}


def _ray_overrides(address: str | None) -> dict[str, Any]:
    return {} if address is None else {"ray": {"address": address}}


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
