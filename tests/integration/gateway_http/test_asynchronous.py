"""Requests over HTTP that nobody waits for."""

import httpx
import pytest

from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.gateway.core.limits import GatewayLimits
from support.gateway import Cluster, until
from support.http_calls import ANSWER, CHAT, COMPLETION, Events, open_requests


async def test_an_asynchronous_request_is_answered_later(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.pause_at = 0
    made = await http.post(f"{url}/v1/chat/completions", json=CHAT, headers={"prefer": "respond-async"})
    assert (made.status_code, made.headers["preference-applied"]) == (202, "respond-async")
    status = await http.get(url + made.headers["location"])
    assert status.json()["status"] in ("queued", "running")
    cluster.agent.go.set()
    await until(lambda: cluster.agent.ended)
    done = (await http.get(url + made.headers["location"])).json()
    assert (done["status"], done["outcome"]) == ("ended", "stop")
    assert done["response"]["choices"][0]["message"]["content"] == ANSWER
    assert done["response"]["object"] == "chat.completion"


@pytest.mark.parametrize(
    "preferences", [("wait=10", "respond-async"), ("handling=strict", "a, Respond-Async")]
)
async def test_preferences_may_come_in_several_header_lines(
    url: str, http: httpx.AsyncClient, preferences: tuple[str, ...]
) -> None:
    """RFC 7240: as if they were one list."""
    lines = [("prefer", each) for each in preferences]
    made = await http.post(f"{url}/v1/chat/completions", json=CHAT, headers=lines)
    assert (made.status_code, made.headers["preference-applied"]) == (202, "respond-async")


async def test_an_asynchronous_request_is_stopped_at_its_stop_string(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.answer = lambda request: b"one two three " * 20
    cluster.agent.pause_at = 60
    body = COMPLETION | {"stop": " three", "max_tokens": 300}
    made = await http.post(f"{url}/v1/completions", json=body, headers={"prefer": "respond-async"})
    await until(lambda: list(cluster.agent.ended.values()) == [Outcome.STOP])
    done = (await http.get(url + made.headers["location"])).json()
    assert done["response"]["choices"][0] == {
        "index": 0,
        "text": "one two",
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": " three",
    }


async def test_reading_an_asynchronous_request_does_not_bind_it_to_the_reader(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    url = await cluster.gateway(limits=GatewayLimits(resume_grace_stream_s=0))
    cluster.agent.pause_at = 3
    made = await http.post(f"{url}/v1/completions", json=COMPLETION, headers={"prefer": "respond-async"})
    id = RequestId(made.json()["id"])
    async with http.stream("GET", f"{url}/v1/requests/{id}/events") as response:
        await Events(response).text(until_tokens=3)
    await until(lambda: open_requests(http, cluster.admin_urls[url], 0))
    cluster.agent.go.set()
    await until(lambda: cluster.agent.ended.get(id) is Outcome.STOP)
