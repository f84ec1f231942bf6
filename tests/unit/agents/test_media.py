"""Prompts with images: an agent takes them from the store, and vLLM gets its own tensors with our places."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from qlm.agents.core.events import Progress
from qlm.agents.engines.vllm.client import VllmEngine
from qlm.agents.engines.vllm.media import features_of, render_body
from qlm.domain.errors import (
    EngineGarbledError,
    EngineRefusedError,
    StoreDataError,
    StoreUnavailableError,
)
from qlm.domain.formats.media import Media, Placeholder, encode_media, media_digest
from qlm.domain.outcome import Outcome
from qlm.domain.ports.engine import EngineCall
from qlm.domain.request import Request
from support.agent_world import World
from support.flaky import until
from support.pictures import GREEN, RED, data_url
from support.plant import M, Plant, ScriptedEngine, plant
from support.requests import a_request

PARTS = [{"type": "image_url", "image_url": {"url": data_url(each)}} for each in (RED, GREEN)]
DATA = encode_media(Media(parts=PARTS, placeholders={"image": [Placeholder(1, 2, 3), Placeholder(9, 2, 3)]}))


def with_media(data: bytes = DATA, **more: Any) -> Request:
    return a_request(media=media_digest(data), **more)


async def accept(it: Plant, request: Request) -> None:
    assert await it.store.put_media(request.id, DATA)
    await it.accept(request)


async def test_the_engine_gets_the_media_and_the_store_drops_them_at_the_end(tmp_path: Path) -> None:
    async with plant(tmp_path) as it:
        await accept(it, with_media())
        await it.accept(a_request("r2"))
        await it.all_end_exactly_once()
        (with_them,) = [call for call in it.engines[M].calls if call.sampling.media]
        assert it.engines[M].media == {with_them.call_id: DATA}
        assert await it.store.media(it.requests[0].id) is None


async def test_a_generation_that_goes_on_has_them_again(tmp_path: Path) -> None:
    async with plant(tmp_path) as it:
        it.engines[M].tokens_max = 3
        await accept(it, with_media())
        await it.lose_engine(made=3)
        await it.all_end_exactly_once()
        first, second = it.engines[M].calls
        assert it.engines[M].media == {first.call_id: DATA, second.call_id: DATA}
        assert len(second.prompt_ids) == len(first.prompt_ids) + 3


async def test_a_store_that_is_away_is_waited_for(tmp_path: Path) -> None:
    async with plant(tmp_path) as it:
        it.store_faults.fail(StoreUnavailableError("away"), "media")
        await accept(it, with_media())
        await until(lambda: it.store_faults.raised["media"] >= 1)
        assert it.engines[M].calls == []
        it.store_faults.heal()
        await it.all_end_exactly_once()


@pytest.mark.parametrize("waits_for", ["store", "engine"])
async def test_a_request_that_is_cancelled_before_the_engine_has_it_never_runs(
    tmp_path: Path, waits_for: str
) -> None:
    async with plant(tmp_path) as it:
        if waits_for == "store":
            it.store_faults.fail(StoreUnavailableError("away"), "media")
        else:
            it.engines[M].prepares.clear()
        await accept(it, with_media())
        await until(lambda: it.runner._generations._preparing)
        await it.store.cancel(it.requests[0].id)
        await until(it.all_ended)
        assert await it.outcome(it.requests[0].id) is Outcome.CANCELLED
        it.store_faults.heal()
        it.engines[M].prepares.set()
        await it.accept(a_request("r2"))
        await until(it.all_ended)
        assert [call.sampling.media for call in it.engines[M].calls] == [""]
        await until(it.no_message_left)


@pytest.mark.parametrize("error", [StoreDataError("WRONGTYPE"), RuntimeError("a defect")])
async def test_an_error_of_another_kind_costs_the_request_alone(tmp_path: Path, error: Exception) -> None:
    async with plant(tmp_path) as it:
        it.store_faults.fail(error, "media")
        await accept(it, with_media())
        await until(lambda: it.store_faults.raised["media"] >= 1)
        it.store_faults.heal()
        await it.accept(a_request("r2"))
        await until(it.all_ended)
        assert await it.outcome(it.requests[1].id) is Outcome.LENGTH
        assert not it.running.done()


@pytest.mark.parametrize("stored", [None, b"others"])
async def test_media_that_are_lost_end_their_request_alone(tmp_path: Path, stored: bytes | None) -> None:
    async with plant(tmp_path) as it:
        if stored is not None:
            await it.store.put_media(with_media().id, stored)
        await it.accept(with_media())
        await until(it.all_ended)
        assert await it.outcome(it.requests[0].id) is Outcome.OUTPUT_LOST
        output = await it.store.read_output(it.requests[0].id, 0)
        assert output is not None and "send it again" in output.detail
        await until(it.no_message_left)
        await it.accept(a_request("r2"))
        await until(it.all_ended)
        assert await it.outcome(it.requests[1].id) is Outcome.LENGTH
        assert [call.sampling.media for call in it.engines[M].calls] == [""]


async def test_a_call_that_is_aborted_as_soon_as_it_is_prepared_leaves_no_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors of images take megabytes, and its engine's client lives for weeks."""
    tensors = dict[str, bytes]()

    async def prepare(engine: ScriptedEngine, call: EngineCall, media: bytes) -> None:
        tensors[call.call_id] = media
        (task,) = it.runner._generations._tasks.values()
        asyncio.get_running_loop().call_soon(task.cancel)

    def forget(engine: ScriptedEngine, call_id: str) -> None:
        forgotten.append(call_id)
        tensors.pop(call_id, None)

    forgotten = list[str]()
    monkeypatch.setattr(ScriptedEngine, "prepare", prepare)
    monkeypatch.setattr(ScriptedEngine, "forget", forget)
    async with plant(tmp_path) as it:
        await accept(it, with_media())
        await until(lambda: forgotten)
        assert not tensors
        assert it.engines[M].calls == [], "it never came to the engine"


async def test_the_client_forgets_the_tensors_of_a_call() -> None:
    engine = VllmEngine("http://127.0.0.1:1", "m", seqs_max=1)
    engine._features |= {"c": b"tensors", "d": b"others"}
    engine.forget("c")
    engine.forget("unknown")
    assert engine._features == {"d": b"others"}
    await engine.close()


def rendered(**changed: Any) -> bytes:
    features: dict[str, Any] = {
        "mm_hashes": {"image": ["h1", "h2"]},
        "mm_placeholders": {"image": [{"offset": 40, "length": 3}, {"offset": 4, "length": 3}]},
        "kwargs_data": {"image": ["t1", "t2"]},
    }
    return orjson.dumps({"features": features | changed})


def test_features_have_the_engines_tensors_at_the_places_of_the_prompt() -> None:
    assert orjson.loads(features_of(DATA, rendered())) == {
        "mm_hashes": {"image": ["h1", "h2"]},
        "mm_placeholders": {"image": [{"offset": 1, "length": 2}, {"offset": 9, "length": 2}]},
        "kwargs_data": {"image": ["t1", "t2"]},
    }


def test_the_engine_is_asked_for_the_parts_alone() -> None:
    body = orjson.loads(render_body(DATA, "m"))
    assert body == {"model": "m", "messages": [{"role": "user", "content": PARTS}], "max_tokens": 1}


@pytest.mark.parametrize(
    "places", [{"image": [{"offset": 0, "length": 3}]}, {"image": [{"offset": 0, "length": 9}] * 2}, {}]
)
def test_an_engine_with_other_options_than_the_render_tier_refuses(places: Any) -> None:
    with pytest.raises(EngineRefusedError, match="same model and options"):
        features_of(DATA, rendered(mm_placeholders=places))


@pytest.mark.parametrize("answer", [b"{", b"[]", b"{}", b'{"features": null}', b'{"features": {}}'])
def test_an_answer_without_features_is_garbled(answer: bytes) -> None:
    with pytest.raises(EngineGarbledError):
        features_of(DATA, answer)


def test_damaged_media_are_refused() -> None:
    with pytest.raises(EngineRefusedError, match="media"):
        render_body(b"damaged", "m")


def test_a_call_whose_media_are_made_ready_counts_as_moving() -> None:
    world = World()
    world.end_swap(ok=True)
    world.accept(replace(with_media(arrival_ns=world.now_ns), tenant="20"))
    world.wait(0.1)
    world.flow()
    (call_id,) = world.agent.state.requests.calls
    progress = world.agent.state.stats.progress
    for _ in range(120):
        world.send(Progress(chunks=(), preparing=(call_id,)))
        world.wait(1.0)
    assert (progress.silent_s, progress.longest_silent_s) == (0.0, 0.0)
    assert call_id in world.agent.state.requests.calls
