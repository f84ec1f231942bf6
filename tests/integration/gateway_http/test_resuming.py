"""Streams over HTTP that are resumed, here or at another gateway."""

import httpx
import pytest

from support.gateway import Cluster, text_then_end
from support.http_calls import ANSWER, COMPLETION, RESUMABLE, Events, refusal


async def test_a_broken_stream_continues_on_another_gateway(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    answer = "Grüße aus der Warteschlange, 日本"
    cluster.agent.answer = lambda request: text_then_end(answer)
    cluster.agent.pause_at = 9
    body = COMPLETION | {"stream": True, "max_tokens": 100}
    async with http.stream("POST", f"{url}/v1/completions", json=body, headers=RESUMABLE) as response:
        id = response.headers["x-request-id"]
        events = Events(response)
        text = await events.text(until_tokens=9)
    cluster.agent.go.set()
    other = await cluster.gateway()
    resumed = {"last-event-id": str(events.last_id)}
    async with http.stream("GET", f"{other}/v1/requests/{id}/events", headers=resumed) as response:
        text += await Events(response).text()
    assert text == answer


@pytest.mark.parametrize("offset", [0, 5, 14])
async def test_an_ended_stream_can_be_read_again_from_any_offset(
    url: str, http: httpx.AsyncClient, offset: int
) -> None:
    made = await http.post(f"{url}/v1/completions", json=COMPLETION)
    events = f"{url}/v1/requests/{made.headers['x-request-id']}/events?offset={offset}"
    async with http.stream("GET", events) as response:
        assert await Events(response).text() == ANSWER[offset:]


async def test_an_id_beyond_the_answer_is_lost_output(url: str, http: httpx.AsyncClient) -> None:
    made = await http.post(f"{url}/v1/completions", json=COMPLETION)
    events = await http.get(f"{url}/v1/requests/{made.headers['x-request-id']}/events?offset=99")
    assert '"code":"output_lost"' in events.text
    assert events.text.endswith("data: [DONE]\n\n")


async def test_a_senseless_id_is_refused(url: str, http: httpx.AsyncClient) -> None:
    made = await http.post(f"{url}/v1/completions", json=COMPLETION)
    events = f"{url}/v1/requests/{made.headers['x-request-id']}/events"
    assert refusal(await http.get(events, headers={"last-event-id": "x"}))["param"] == "Last-Event-ID"
    beside = await http.get(f"{events}?offset=x", headers={"last-event-id": "0"})
    assert refusal(beside)["param"] == "offset", "though the header wins"
    long = await http.get(events, headers={"last-event-id": "9" * 5000})
    assert (long.status_code, refusal(long)["param"]) == (400, "Last-Event-ID")
    assert len(refusal(long)["message"]) < 400


@pytest.mark.parametrize("headers", [RESUMABLE, {"last-event-id": "0"}])
async def test_a_stream_has_ids_only_if_its_client_asks_for_them(
    url: str, http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    body = COMPLETION | {"stream": True}
    with_ids = await http.post(f"{url}/v1/completions", json=body, headers=headers)
    assert with_ids.text.startswith("id: 3\ndata: ")
    for asked in ({}, {"x-qlm-stream": "plain"}, headers | {"x-qlm-stream": "plain"}):
        without = await http.post(f"{url}/v1/completions", json=body, headers=asked)
        blocks = without.text.strip().split("\n\n")
        assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    odd = await http.post(f"{url}/v1/completions", json=body, headers={"x-qlm-stream": "odd"})
    assert refusal(odd)["param"] == "x-qlm-stream"
