"""An emulated render tier on loopback, and answers as an emulated engine generates them."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_network

from qlm.domain.ports.engine import EngineCall
from qlm.domain.request import Request
from qlm.gateway.http.server import create_server
from qlm.gateway.render.client import RenderClient
from qlm.gateway.render.media.links import Links
from qlm.gateway.render.rendering import RenderTier, RenderTiers
from qlm.simulator.emulation.render import render_app
from qlm.simulator.engine.generation import hashed_generation
from support.gateway import SystemClock, serving

_START = hashed_generation(block_tokens=16, context_tokens=4096, mean_output_tokens=60)


def emulated_answer(request: Request) -> Sequence[int]:
    """Return the answer of an emulated engine."""
    call = EngineCall(call_id=request.id, prompt_ids=request.prompt_ids, sampling=request.sampling)
    return tuple(_START(call).ids or ())


@contextlib.asynccontextmanager
async def emulated_tiers(*models: str, reasons: bool = False) -> AsyncIterator[RenderTiers]:
    """Run an emulated render tier for models."""
    async with serving(create_server(render_app())) as url, tiers_at(url, *models, reasons=reasons) as tiers:
        yield tiers


@contextlib.asynccontextmanager
async def tiers_at(url: str, *models: str, reasons: bool = False) -> AsyncIterator[RenderTiers]:
    """Use a render tier that runs already."""
    clients = {model: RenderClient(url, model, SystemClock()) for model in models}
    links = Links(networks=[ip_network("127.0.0.1/32")])
    try:
        yield {model: RenderTier(client, reasons, links) for model, client in clients.items()}
    finally:
        await links.close()
        for client in clients.values():
            await client.close()
