"""Images in conversations over real HTTP: where their data are, what their request knows, and failures."""

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from qlm.domain.errors import BrokerUnavailableError, StoreUnavailableError
from qlm.domain.formats.media import decode_media, media_digest
from qlm.domain.ids import RequestId
from qlm.gateway.render.rendering import RenderTiers
from support.flaky import Faults, flaky
from support.gateway import Cluster, running_cluster, until
from support.pictures import GREEN, RED, data_url, served
from support.rendering import emulated_answer

CHAT = "/v1/chat/completions"


def asked(*urls: str, **more: Any) -> dict[str, Any]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [{"type": "text", "text": "What is it?"}, *images]
    return {"model": "emulated", "messages": [{"role": "user", "content": content}], "max_tokens": 9, **more}


def waiting(cluster: Cluster) -> RequestId:
    (id,) = cluster.store._media
    return id


async def test_the_store_has_the_data_and_the_message_has_not(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    await cluster.agent.rest()
    answer = await http.post(
        CHAT, json=asked(data_url(RED), data_url(GREEN)), headers={"prefer": "respond-async"}
    )
    assert answer.status_code == 202, answer.text
    stored = await cluster.store.media(RequestId(answer.json()["id"]))
    assert stored is not None
    media = decode_media(stored)
    assert [part["image_url"]["url"] for part in media.parts] == [data_url(RED), data_url(GREEN)]
    cluster.agent.working.set()
    await until(lambda: cluster.agent.ended)
    (request,) = cluster.agent.leased
    assert request.sampling.media == media_digest(stored)
    places = [each.offset for each in media.placeholders["image"]]
    assert [set(request.prompt_ids[at : at + 16]) for at in places] == [{0x1A}, {0x1A}]
    assert cluster.store._media == {}


async def test_each_of_several_answers_has_its_own(cluster: Cluster, http: httpx.AsyncClient) -> None:
    await cluster.agent.rest()
    body = asked(data_url(RED), n=3)
    await http.post(CHAT, json=body, headers={"prefer": "respond-async"})
    assert len(cluster.store._media) == 3
    cluster.agent.working.set()
    await until(lambda: not cluster.store._media)


async def test_an_image_by_its_address_is_fetched_once_and_kept(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    with served({"red": RED}) as site:
        answer = await http.post(CHAT, json=asked(f"{site}/red"))
    same = await http.post(CHAT, json=asked(data_url(RED)))
    assert answer.json()["choices"] == same.json()["choices"]


async def test_an_erased_request_leaves_none(cluster: Cluster, http: httpx.AsyncClient) -> None:
    await cluster.agent.rest()
    answer = await http.post(CHAT, json=asked(data_url(RED)), headers={"prefer": "respond-async"})
    assert cluster.store._media
    assert (await http.delete(f"/v1/requests/{answer.json()['id']}")).is_success
    assert cluster.store._media == {}


async def test_without_a_render_tier_media_are_refused_by_name(cluster: Cluster) -> None:
    async with httpx.AsyncClient(base_url=await cluster.gateway(), timeout=20) as plain:
        answer = await plain.post(CHAT, json=asked(data_url(RED)))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "messages[0].content")
    assert "has no render tier" in error["message"]


async def test_grpc_and_completions_have_no_place_for_media(http: httpx.AsyncClient) -> None:
    body = {"model": "emulated", "prompt": asked(data_url(RED))["messages"][0]["content"], "max_tokens": 2}
    answer = await http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


async def test_tokens_of_an_image_are_counted(http: httpx.AsyncClient) -> None:
    body = {key: value for key, value in asked(data_url(RED)).items() if key != "max_tokens"}
    counted = await http.post("/tokenize", json=body)
    answer = await http.post(CHAT, json=asked(data_url(RED)))
    assert counted.json()["count"] == answer.json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize("unheard", [False, True])
@pytest.mark.parametrize(
    ("method", "error", "status"),
    [
        ("put_media", StoreUnavailableError("away"), 503),
        ("publish", BrokerUnavailableError("away"), 503),
        ("publish", RuntimeError("a defect"), 500),
    ],
)
@pytest.mark.parametrize("n", [1, 3])
async def test_a_request_that_is_not_queued_leaves_none(
    tmp_path: Path, tiers: RenderTiers, method: str, error: Exception, status: int, unheard: bool, n: int
) -> None:
    faults = Faults()
    async with running_cluster(tmp_path) as cluster:
        cluster.agent.answer = emulated_answer
        kept, cluster.store = cluster.store, flaky(cluster.store, faults)
        await cluster.agent.rest()
        url = await cluster.gateway(render_tiers=tiers, broker=flaky(cluster.broker, faults))
        async with httpx.AsyncClient(base_url=url, timeout=20) as http:
            (faults.fail_unheard if unheard else faults.fail)(error, method)
            refused = await http.post(CHAT, json=asked(data_url(RED), n=n))
            assert refused.status_code == status, refused.text
            assert kept._media == {}
            faults.heal()
            cluster.agent.working.set()
            answered = await http.post(CHAT, json=asked(data_url(RED)))
        assert answered.status_code == 200, answered.text


async def test_media_of_an_attempt_that_was_not_queued_give_way(
    cluster: Cluster, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = cluster.store.put_media

    async def put_media(id: RequestId, data: bytes) -> bool:
        cluster.store._media.setdefault(id, b"of an attempt whose gateway died")
        return await put(id, data)

    monkeypatch.setattr(cluster.store, "put_media", put_media)
    monkeypatch.setattr(cluster.store, "drop_media", partial(forget, cluster, monkeypatch, put))
    answered = await http.post(CHAT, json=asked(data_url(RED)), headers={"idempotency-key": "a"})
    assert answered.status_code == 200, answered.text
    assert [request.sampling.media for request in cluster.agent.leased] != [""]


async def forget(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, put: Any, id: RequestId) -> None:
    """Drop the media of an attempt, and let the next put find none."""
    cluster.store._media.pop(id)
    monkeypatch.setattr(cluster.store, "put_media", put)


async def test_a_key_with_other_images_is_refused(cluster: Cluster, http: httpx.AsyncClient) -> None:
    await cluster.agent.rest()
    headers = {"idempotency-key": "a", "prefer": "respond-async"}
    first = await http.post(CHAT, json=asked(data_url(RED)), headers=headers)
    again = await http.post(CHAT, json=asked(data_url(RED)), headers=headers)
    other = await http.post(CHAT, json=asked(data_url(GREEN)), headers=headers)
    assert (first.status_code, again.status_code, other.status_code) == (202, 202, 422), other.text
    assert first.json()["id"] == again.json()["id"] == waiting(cluster)


async def test_a_request_whose_key_has_other_images_meanwhile_is_refused(
    cluster: Cluster, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.agent.rest()

    async def put_media(id: RequestId, data: bytes) -> bool:
        return False

    monkeypatch.setattr(cluster.store, "put_media", put_media)
    refused = await http.post(CHAT, json=asked(data_url(RED)), headers={"idempotency-key": "a"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert await cluster.broker.queues() == []
