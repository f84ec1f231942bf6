"""Readiness of a gateway: whether it can accept requests and answer them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from qlm.domain.errors import QlmError
from qlm.gateway.api.fields.service import Readiness
from qlm.gateway.sessions.gateway import Gateway


async def readiness(gateway: Gateway) -> Readiness:
    """Probe broker and store; `status` is `ok` if promises can be kept.

    The broker and the store can be written, and output reaches the clients.
    """
    timeout_s = gateway.limits.probe_timeout_s
    broker, store = await asyncio.gather(
        _probe(gateway.broker.probe(), timeout_s), _probe(gateway.store.probe(), timeout_s)
    )
    if broker == "ok" and (refusal := gateway.load.recent_refusal(gateway.clock.now_ns())):
        broker = refusal
    if store == "ok" and (why := gateway.load.store_away()):
        store = why  # requests are refused until the next look at the cluster
    sessions = gateway.hub.state
    ready = broker == store == sessions == "ok"
    return {
        "status": "ok" if ready else "unavailable",
        "broker": broker,
        "store": store,
        "sessions": sessions,
    }


async def _probe(call: Coroutine[Any, Any, object], timeout_s: float) -> str:
    try:
        async with asyncio.timeout(timeout_s):
            await call
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except QlmError as error:
        return str(error)
    return "ok"
