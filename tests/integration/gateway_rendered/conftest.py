"""A gateway whose model has an emulated engine and an emulated render tier."""

from collections.abc import AsyncIterator
from pathlib import Path

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
