"""Weights files read ahead."""

import asyncio
from pathlib import Path

from qlm.agents.engines.page_cache import EmulatedWeights, PageCachedWeights


async def test_weights_files_are_read_whole_and_others_are_not_needed(tmp_path: Path) -> None:
    assert not await PageCachedWeights(tmp_path).prefetch(), "there is nothing to read"
    (tmp_path / "model-1.safetensors").write_bytes(b"w" * 1_000_000)
    weights = PageCachedWeights(tmp_path)
    assert await weights.prefetch()
    await weights.drop()


async def test_files_dropped_while_they_are_read_have_not_come(tmp_path: Path) -> None:
    weights = EmulatedWeights(tmp_path / "cache" / "m", read_s=0.01)
    fetching = asyncio.create_task(weights.prefetch())
    await asyncio.sleep(0)
    await weights.drop()
    assert not await fetching
    assert not (tmp_path / "cache" / "m").exists()


async def test_an_emulated_read_leaves_its_marker_until_it_is_dropped(tmp_path: Path) -> None:
    weights = EmulatedWeights(tmp_path / "cache" / "m", read_s=0.0)
    assert await weights.prefetch()
    assert (tmp_path / "cache" / "m").exists()
    await weights.drop()
    assert not (tmp_path / "cache" / "m").exists()
