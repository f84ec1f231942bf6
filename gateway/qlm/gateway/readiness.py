"""Whether a gateway can accept requests and answer them, for whoever probes."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from qlm.domain.errors import QlmError
from qlm.domain.ids import QueueName
from qlm.gateway.fields.service import Readiness
from qlm.gateway.gateway import Gateway

_PROBE_QUEUE: Final = QueueName("qlm.ingress")


async def readiness(gateway: Gateway) -> Readiness:
    """Ask broker and store; `status` is `ok` if both answer and output is brought to clients.

    Returns:
        `status`, and what is wrong (or `ok`) of `broker`, `store` and `sessions`.
    """
    broker, store = await asyncio.gather(
        _probe(gateway, gateway.broker.depth(_PROBE_QUEUE)), _probe(gateway, gateway.store.incarnation())
    )
    if broker == "ok" and (trouble := gateway.load.trouble(gateway.clock.now_ns())):
        broker = trouble
    sessions = gateway.hub.state
    ready = broker == store == sessions == "ok"
    return {
        "status": "ok" if ready else "unavailable",
        "broker": broker,
        "store": store,
        "sessions": sessions,
    }


async def _probe(gateway: Gateway, call: Coroutine[Any, Any, object]) -> str:
    try:
        async with asyncio.timeout(gateway.limits.probe_timeout_s):
            await call
    except TimeoutError:
        return f"no answer within {gateway.limits.probe_timeout_s:g} s"
    except QlmError as error:
        return str(error)
    return "ok"
