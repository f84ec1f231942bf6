"""Memory of a gateway after answered requests."""

import gc

import httpx
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from support.gateway import Cluster
from support.http_calls import COMPLETION

REQUESTS = 20


@pytest.mark.parametrize("stream", [False, True])
async def test_answered_requests_leave_nothing_to_the_cycle_collector(
    cluster: Cluster, url: str, http: httpx.AsyncClient, stream: bool
) -> None:
    cluster.agent.go.set()
    gc.disable()
    try:
        before = _requests()
        for _ in range(REQUESTS):
            answer = await http.post(f"{url}/v1/completions", json=COMPLETION | {"stream": stream})
            assert answer.status_code == 200
        assert _requests() - before <= 1  # the connection's last one
    finally:
        gc.enable()


def _requests() -> int:
    # By type: isinstance asks a weak proxy for the class of its object, which may be gone.
    return sum(issubclass(type(each), RequestResponseCycle) for each in gc.get_objects())
