"""A plant with a gateway that serves operators: four requests run, and the rest waits in the plan."""

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import uvicorn

from qlm.cli.plans.page import explain_for_page
from qlm.cli.runtime.clock import SystemClock
from qlm.domain.fleet import ModelSpec
from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.ports.published import PublishedKind
from qlm.domain.request import Request
from qlm.gateway.core.access import AccessRules
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.http.app import admin_app_of, create_app
from qlm.gateway.http.page.handlers import LivePage
from qlm.gateway.http.server import create_server
from qlm.gateway.sessions.gateway import Gateway, GatewayParts
from qlm.planner.published_plan import PublishedPlan, published_plan_from_plain
from support.flaky import Faults, flaky, until
from support.gateway import serving
from support.plant import M, N, Plant, plant
from support.requests import a_request

SPECS = tuple(ModelSpec(id=model, tokenizer="byte", context_tokens=4096) for model in (M, N))


@dataclass(slots=True)
class Live:
    """A plant with a gateway that serves operators at `url` by `server`."""

    plant: Plant
    url: str
    gateway: Gateway
    page: LivePage
    server: uvicorn.Server
    faults: Faults

    async def looks_again(self) -> None:
        """Wait until the gateway has read the cluster once more."""
        seen = self.gateway.load.view
        await until(lambda: self.gateway.load.view is not seen)

    async def kept(self) -> PublishedPlan | None:
        data = await self.plant.store.published(PublishedKind.PLAN)
        return None if data is None else published_plan_from_plain(orjson.loads(data))

    async def plans(self, requests: int) -> bool:
        """Whether the kept plan has so many requests."""
        kept = await self.kept()
        return kept is not None and sum(group.requests for group in kept.problem.groups) == requests


@contextlib.asynccontextmanager
async def living(folder: Path, rules: AccessRules | None = None) -> AsyncIterator[Live]:
    """The engines make no token until they are let: four requests run, the rest waits."""
    async with plant(folder) as made, contextlib.AsyncExitStack() as stack:
        for engine in made.engines.values():
            engine.tokens_max = 0
        faults = Faults()
        app = create_app(
            GatewayParts(
                models=SPECS,
                broker=made.broker,
                store=flaky(made.store, faults),
                clock=SystemClock(),
                limits=GatewayLimits(view_interval_s=0.1),
                gateway_id=GatewayId("gateway"),
                new_id=lambda: RequestId("unused"),
            )
        )
        await stack.enter_async_context(app.router.lifespan_context(app))
        gateway = app.state.gateway
        operators = admin_app_of(gateway, rules, explain_for_page)
        admin = create_server(operators, "127.0.0.1", 0, shutdown_s=1)
        url = await stack.enter_async_context(serving(admin))
        yield Live(made, url, gateway, operators.state.live_page, admin, faults)


def some_requests(number: int, **more: Any) -> list[Request]:
    """Requests of one class, a microsecond apart."""
    now_ns = time.time_ns()
    return [
        a_request(f"{more.get('model', 'm')}{n}", deadline_ms=100_000, arrival_ns=now_ns + 1000 * n, **more)
        for n in range(number)
    ]


async def running(live: Live, number: int) -> None:
    """Fill the engine of m, and wait until the plan knows the rest."""
    await live.plant.accept(*some_requests(number))
    await until(lambda: len(live.plant.engines[M].running) == 4)
    await until(lambda: live.plans(number - 4))
