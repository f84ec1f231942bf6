"""Render tiers of a gateway: emulated in its process, started as a process of their own, or attached to."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from qlm.agents.engines.command import EngineCommand
from qlm.agents.engines.process import EngineProcess
from qlm.cli.config.addresses import secret_variables
from qlm.cli.config.fleet import ModelConfig
from qlm.cli.config.serving import RenderConfig
from qlm.cli.config.settings import Config
from qlm.cli.rendering.supervision import STOP_GRACE_S, Restarts, keep_running
from qlm.cli.runtime.engines import merged_environment
from qlm.domain.ports.clock import Clock
from qlm.domain.shell.tasks import end_tasks
from qlm.gateway.http.server import create_server, running
from qlm.gateway.render.client import RenderClient
from qlm.gateway.render.media.links import Links
from qlm.gateway.render.rendering import RenderTier, RenderTiers

_KILL_S: Final = 1.0
"""Time for the end of a killed process, after its grace."""

_DEFAULTS: Final = RenderConfig()
_RESTARTS: Final = Restarts()


@asynccontextmanager
async def render_tiers(
    config: Config, clock: Clock, restarts: Restarts = _RESTARTS
) -> AsyncIterator[RenderTiers]:
    """Provide the render tiers of all models that have one, while inside.

    One that is started is not waited for: until it serves, requests that need it are refused with 503.

    Args:
        config: The configuration.
        clock: The time.
        restarts: Pauses before one that has ended is started again.
    """
    async with AsyncExitStack() as stack:
        emulated = any(model.engine == "emulated" and _url(model) is None for model in config.models)
        emulated_url = await stack.enter_async_context(_emulated()) if emulated else None
        links = Links(config.media, [ip_network(each) for each in config.media.allowed_networks])
        stack.push_async_callback(links.close)
        tiers = {}
        for model in config.models:
            render = model.render or _DEFAULTS
            url = emulated_url if model.engine == "emulated" and _url(model) is None else _url(model)
            if url is None and model.render is None:
                continue
            client = RenderClient(url or _free_address(), model.id, clock, timeout_s=render.timeout_s)
            stack.push_async_callback(client.close)
            if url is None:
                await stack.enter_async_context(_launched(config, model, render, client, restarts))
            tiers[str(model.id)] = RenderTier(client, render.reasons, links)
        yield tiers


def _url(model: ModelConfig) -> str | None:
    return None if model.render is None else model.render.url


@asynccontextmanager
async def _emulated() -> AsyncIterator[str]:
    # Imported here: gateways of real models need no simulator.
    from qlm.simulator.emulation.render import render_app

    listener = socket.create_server(("127.0.0.1", 0))
    async with running(create_server(render_app()), listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@asynccontextmanager
async def _launched(
    config: Config, model: ModelConfig, render: RenderConfig, client: RenderClient, restarts: Restarts
) -> AsyncIterator[None]:
    """Run `vllm launch render` while inside; start it again when it ends."""
    name = f"render-{model.id}".replace("/", "_")

    def make() -> EngineProcess:
        # A port of its own for each start: another process may have taken the one before.
        client.url = _free_address()
        command = render_command(config, model, render, int(client.url.rpartition(":")[2]))
        return EngineProcess(
            name,
            command.argv,
            env=command.env,
            log_file=config.data_dir / "logs" / f"{name}.log",
            state_folder=config.data_dir / "engines",
            withheld=secret_variables(config),
        )

    supervision = asyncio.create_task(keep_running(f"the render tier of {model.id}", make, restarts))
    try:
        yield
    finally:
        await end_tasks([supervision], grace_s=STOP_GRACE_S + _KILL_S)


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def render_command(config: Config, model: ModelConfig, render: RenderConfig, port: int) -> EngineCommand:
    """Build the command line of `vllm launch render` (0.32) for a model, on loopback."""
    options = {
        "--served-model-name": model.id,
        "--host": "127.0.0.1",
        "--port": str(port),
        "--max-model-len": str(model.context_tokens),
    }
    argv = (str(Path(config.vllm.python).with_name("vllm")), "launch", "render", str(model.path))
    words = (word for option in options.items() for word in option)
    env = {"VLLM_NO_USAGE_STATS": "1", "PYTHONFAULTHANDLER": "1", "HF_HUB_OFFLINE": "1"}
    folder = config.vllm.pythonpath
    patches = {"PYTHONPATH": str(folder.resolve())} if folder else {}
    return EngineCommand((*argv, *words, *render.extra_args), merged_environment(patches, env))
