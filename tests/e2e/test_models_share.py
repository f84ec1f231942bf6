"""Three models share one emulated instance: swaps happen, everything is answered, urgent work first."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx

from support.qlm_process import QlmProcess, emulated, serving


async def ask(client: httpx.AsyncClient, model: str, n: int, **more: Any) -> dict[str, Any]:
    body = {"model": model, "prompt": f"{model} {n}", "max_tokens": 20, "ignore_eos": True, **more}
    answer: dict[str, Any] = (await client.post("/v1/completions", json=body)).raise_for_status().json()
    return answer


async def until(
    process: QlmProcess, client: httpx.AsyncClient, holds: Callable[[dict[str, Any]], bool]
) -> None:
    """Wait until something holds of the one instance; the test's timeout bounds it."""
    while True:
        (instance,) = (await client.get(f"{process.admin_url}/admin/v1/instances")).json()["instances"]
        if holds(instance):
            return
        await asyncio.sleep(0.02)


async def test_three_models_take_turns_on_one_instance() -> None:
    # Within reach only if an idle model leaves within seconds; with a minute it stays for most of that.
    soon = {"deadline_ms": 10_000}
    models = ("mistral-7b", "llama-3-8b", "vicuna-13b")
    with serving(emulated(*models, time_scale=0.1)) as process:
        async with httpx.AsyncClient(base_url=process.url, timeout=120) as client:
            answers = await asyncio.gather(*(ask(client, models[n % 3], n, slo=soon) for n in range(30)))
            assert {answer["usage"]["completion_tokens"] for answer in answers} == {20}
            await until(
                process,
                client,
                lambda each: sorted(each["engines"].values()) == ["asleep", "asleep", "awake"],
            )


async def test_an_urgent_request_overtakes_a_full_batch_load_which_then_finishes_unchanged() -> None:
    config = emulated("mistral-7b", time_scale=1.0, accelerator="A10")
    config["instances"][0]["seqs_max"] = 8
    with serving(config) as process:
        async with httpx.AsyncClient(base_url=process.url, timeout=120) as client:
            instances = (await client.get(f"{process.admin_url}/admin/v1/instances")).json()["instances"]
            places = instances[0]["capacity"]["seqs_max"]
            alone = await ask(client, "mistral-7b", 0, max_tokens=150, service_tier="flex")
            batch = [
                asyncio.create_task(ask(client, "mistral-7b", n, max_tokens=150, service_tier="flex"))
                for n in range(places)
            ]
            await until(process, client, lambda each: each["running"] >= places)
            urgent = await ask(client, "mistral-7b", -1, slo={"deadline_ms": 3000})
            waiting = [task for task in batch if not task.done()]
            assert waiting, "the urgent answer came before the batch was through"
            answers = await asyncio.gather(*batch)
            assert answers[0]["choices"][0]["text"] == alone["choices"][0]["text"]
            listed = (
                await client.get(f"{process.admin_url}/admin/v1/requests", params={"limit": 500})
            ).json()["requests"]
    stories = {each["id"]: each for each in listed}
    mine = stories[urgent["id"].removeprefix("cmpl-")]
    assert mine["ended_s"] <= mine["deadline_s"], "the deadline was met"
    evicted = sum(event["what"] == "evicted" for each in listed for event in each["events"])
    assert evicted >= 1
