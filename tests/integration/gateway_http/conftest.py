"""A gateway over real HTTP: uvicorn on loopback, OpenAI's unmodified client, a real store and broker."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from support.gateway import Cluster, running_cluster
from support.raw_http import Connect, connecting


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


@pytest.fixture
async def url(cluster: Cluster) -> str:
    return await cluster.gateway()


@pytest.fixture
def admin_url(cluster: Cluster, url: str) -> str:
    return cluster.admin_urls[url]


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=20) as client:
        yield client


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    async with connecting() as made:
        yield made
