"""Garbage collection of a process that runs for long."""

import gc
from collections.abc import Iterator

import pytest

from qlm.domain.shell.heap import settle_heap


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_present_objects_are_collected_no_more_and_later_ones_are() -> None:
    before = [[n] for n in range(1_000)]
    settle_heap()
    frozen = gc.get_freeze_count()
    assert frozen > len(before)
    assert not any(each is before[0] for each in gc.get_objects())
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() >= 1
    assert gc.get_freeze_count() <= frozen
