"""Gateways with webhooks, and a receiver of their events."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

import httpx
import openai

from qlm.domain.ports.outbox import EndEvent, OutboxState
from qlm.gateway.files.storage import Storage
from qlm.gateway.outbound.addresses import Network
from qlm.gateway.webhooks.endpoints import BATCH_EVENTS, RESPONSE_EVENTS, Endpoint, Webhooks
from qlm.gateway.webhooks.limits import WebhookLimits
from support.gateway import Cluster, until
from support.webhooks import KEY, Receiver

LOOPBACK: Final = (ip_network("127.0.0.0/8"),)
SOON: Final = WebhookLimits(retry_first_s=0.01, retry_max_s=0.02, timeout_s=5)
ONE_ATTEMPT: Final = WebhookLimits(retry_first_s=3600, retry_max_s=3600, retry_for_s=1800, timeout_s=5)


def replace_limits(**changed: float) -> WebhookLimits:
    """Return limits with short pauses, some of them changed."""
    return WebhookLimits(**SOON.model_dump() | changed)


def added(n: int, tenant: str = "a") -> EndEvent:
    """Return an event of now."""
    return EndEvent(subject=f"{tenant}-{n}", ended_as="stop", tenant=tenant, at_ns=time.time_ns())


def webhooks(*urls: str, networks: Sequence[Network] = LOOPBACK, limits: WebhookLimits = SOON) -> Webhooks:
    """Return endpoints that get everything."""
    events = frozenset((*RESPONSE_EVENTS, *BATCH_EVENTS))
    endpoints = [
        Endpoint(name=f"hook-{n}", url=url, secrets=(KEY,), events=events) for n, url in enumerate(urls)
    ]
    return Webhooks(endpoints=endpoints, networks=networks, limits=limits)


@dataclass
class World:
    cluster: Cluster
    storage: Storage
    receiver: Receiver

    async def gateway(self, hooks: Webhooks) -> openai.AsyncOpenAI:
        url = await self.cluster.gateway(storage=self.storage, webhooks=hooks)
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=20)
        self.cluster.stack.push_async_callback(client.close)
        return client

    async def all_sent(self) -> None:
        """Wait until the outbox is empty."""

        async def empty() -> bool:
            return await self.cluster.store.outbox_state() == OutboxState(0, 0)

        await until(empty)


async def counted(world: World, series: str, value: float) -> bool:
    """Return whether the only gateway of a test shows a value of a metric of webhooks."""
    (url,) = world.cluster.admin_urls.values()
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{url}/metrics")).text
    return f"qlm_gateway_webhook_{series} {value}" in text.splitlines()
