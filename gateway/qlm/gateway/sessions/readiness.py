"""Readiness of a gateway: whether it can accept requests and answer them."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from qlm.domain.errors import QlmError
from qlm.domain.shell.faults import FaultLog
from qlm.gateway.api.fields.service import Readiness
from qlm.gateway.sessions.gateway import Gateway

_log = logging.getLogger(__name__)


async def readiness(gateway: Gateway) -> Readiness:
    """Probe broker and store; `status` is `ok` if promises can be kept.

    The broker and the store can be written, and output reaches the clients.
    """
    timeout_s = gateway.limits.probe_timeout_s
    broker, store = await asyncio.gather(
        _probe(gateway.broker.probe(), timeout_s, gateway.faults),
        _probe(gateway.store.probe(), timeout_s, gateway.faults),
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


async def _probe(call: Coroutine[Any, Any, object], timeout_s: float, faults: FaultLog) -> str:
    try:
        async with asyncio.timeout(timeout_s):
            await call
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except QlmError as error:
        return str(error)
    except Exception as error:  # a bug: whether the part is well is not known
        faults.note(_log, error, "a readiness probe failed")
        return f"its probe failed ({type(error).__name__}); see the log of the gateway"
    return "ok"
