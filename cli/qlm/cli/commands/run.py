"""Commands that run parts of QLM: serve, gateway, controller, agent, agents, emulate."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from qlm.cli.runtime.logs import LogFormat
from qlm.domain.shell.damage import consent_to

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
    # Imported here, as in the other commands: what runs takes longer than the help.
    from qlm.cli import starting

    overrides = _overrides_of_listeners(host, port, grpc_port, admin_port)
    given = {"data_dir": data_dir, "broker": broker, "store": store}
    overrides |= {key: value for key, value in given.items() if value is not None}
    overrides |= _ray_overrides(ray_address)

    starting.run(
        lambda: starting.serve_config(
            config_file,
            overrides,
            vllm=vllm,
            vllm_python=vllm_python,
            vllm_pythonpath=vllm_pythonpath,
            vllm_cpu=vllm_cpu,
            vllm_render=vllm_render,
            ray_address=None if runtime == "ray" else ray_address,
        ),
        starting.Logging(log_level, log_format),
        config_file,
        lambda config: starting.serve_roles(config, config_file, agents=agents, runtime=runtime),
        consent_to(accept_damage),
    )


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
    from qlm.cli import starting
    from qlm.cli.runtime.serving import Roles

    overrides = _overrides_of_listeners(host, port, grpc_port, admin_port)
    starting.run(
        lambda: starting.cluster_config(config_file, overrides),
        starting.Logging(log_level, log_format),
        config_file,
        lambda _: Roles(True, False, ()),
    )


@click.command("controller")
@common
def controller_command(config_file: Path | None, log_level: str, log_format: LogFormat) -> None:
    """Run the controller: grouping and planning. Needs RabbitMQ and Redis."""
    from qlm.cli import starting
    from qlm.cli.runtime.serving import Roles

    starting.run(
        lambda: starting.cluster_config(config_file),
        starting.Logging(log_level, log_format),
        config_file,
        lambda _: Roles(False, True, ()),
    )


@click.command("agent")
@common
@click.argument("instance")
def agent_command(config_file: Path | None, log_level: str, log_format: LogFormat, instance: str) -> None:
    """Run the agent of INSTANCE beside its engines. Needs RabbitMQ and Redis."""
    from qlm.cli import starting

    starting.run(
        lambda: starting.cluster_config(config_file),
        starting.Logging(log_level, log_format),
        config_file,
        lambda config: starting.agent_roles(config, config_file, instance),
    )


@click.command("agents")
@common
@RAY_ADDRESS
def agents_command(
    config_file: Path | None, log_level: str, log_format: LogFormat, ray_address: str | None
) -> None:
    """Run the agents of all instances as Ray actors. Needs RabbitMQ and Redis."""
    from qlm.cli import starting
    from qlm.cli.runtime.serving import Roles

    starting.run(
        lambda: starting.cluster_config(config_file, _ray_overrides(ray_address)),
        starting.Logging(log_level, log_format),
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
