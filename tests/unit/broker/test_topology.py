import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.broker.topology import DEAD, QueueKind, QueueType, hold_instance, hold_queue, lock_of
from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import InstanceId, QueueName

instances = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=15).map(InstanceId)


@given(instances)
def test_a_hold_queue_tells_whose_it_is(instance: InstanceId) -> None:
    queue = hold_queue(instance)
    assert re.fullmatch(r"qlm\.hold\.[A-Za-z0-9_~-]+", queue)
    assert hold_instance(queue) == instance


@given(instances, instances)
def test_two_instances_never_share_a_hold_queue(one: InstanceId, other: InstanceId) -> None:
    assert (hold_queue(one) == hold_queue(other)) == (one == other)


@pytest.mark.parametrize("queue", [DEAD, QueueName("qlm.class.m.batch.all")])
def test_other_queues_hold_nothing_for_an_instance(queue: QueueName) -> None:
    assert hold_instance(queue) is None


@pytest.mark.parametrize("name", ["", "x" * 250, "é" * 50])
def test_an_instance_name_that_makes_no_queue_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidValueError, match="instance"):
        hold_queue(InstanceId(name))


def test_a_lock_is_named_after_its_queue_and_needs_room_for_that() -> None:
    assert lock_of(DEAD) == "qlm.dead.lock"
    assert len(lock_of(QueueName("q" * 250))) == 255
    with pytest.raises(InvalidValueError, match="at most 250 bytes"):
        lock_of(QueueName("q" * 251))


def test_queue_arguments_follow_the_kind() -> None:
    assert QueueKind().arguments() == {"x-queue-type": "classic"}
    quorum = QueueKind(type=QueueType.QUORUM, delivery_limit=-1)
    assert quorum.arguments() == {"x-queue-type": "quorum", "x-delivery-limit": -1}


def test_a_classic_queue_takes_no_delivery_limit() -> None:
    with pytest.raises(InvalidValueError, match="delivery_limit"):
        QueueKind(delivery_limit=20)
