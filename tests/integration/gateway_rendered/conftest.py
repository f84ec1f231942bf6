"""A gateway whose model has an emulated engine and an emulated render tier."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from qlm.gateway.render.rendering import RenderTiers
from support.gateway import Cluster, running_cluster
from support.rendering import emulated_answer, emulated_tiers


@pytest.fixture
async def tiers() -> AsyncIterator[RenderTiers]:
    async with emulated_tiers("emulated") as made:
        yield made


@pytest.fixture
async def cluster(tmp_path: Path, tiers: RenderTiers) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        running.agent.answer = emulated_answer
        yield running


@pytest.fixture
async def url(cluster: Cluster, tiers: RenderTiers) -> str:
    return await cluster.gateway(render_tiers=tiers)


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=20) as made:
        yield made
