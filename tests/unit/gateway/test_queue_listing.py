"""What operators see of queues, and what it costs to list many groups."""

from collections.abc import Iterator
from typing import Any, cast

from qlm.domain.group import Group, request_class
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.slo import BatchSlo
from qlm.domain.view import ClusterView
from qlm.gateway.sessions.operators.queue_listing import holders_of, queues


class Looks(list[Any]):
    """A list that counts the items that are looked at."""

    def __init__(self, *items: Any) -> None:
        super().__init__(items)
        self.looked = 0

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            self.looked += 1
            yield each


def a_group(id: str) -> Group:
    return Group(id=GroupId(id), cls=request_class(ModelId("m"), BatchSlo(), 0), seq=0, count=1)


def a_view(*filled: Looks) -> ClusterView:
    made = [_Queue(InstanceId(f"i{at}"), groups) for at, groups in enumerate(filled)]
    return cast("ClusterView", _View(made))


class _Queue:
    def __init__(self, instance: InstanceId, groups: Looks) -> None:
        self.instance, self.groups, self.version = instance, groups, 1


class _View:
    def __init__(self, queues: list[_Queue]) -> None:
        self.queues, self.classes = queues, list[Any]()


def test_a_group_has_the_instances_on_whose_virtual_queues_it_is() -> None:
    view = a_view(Looks(a_group("a"), a_group("b")), Looks(a_group("b")))
    assert holders_of(view) == {"a": ["i0"], "b": ["i0", "i1"]}
    listed = queues(view, None)["virtual_queues"]
    assert [each["instances"] for each in listed[0]["groups"]] == [["i0"], ["i0", "i1"]]


def test_each_group_is_looked_at_twice_however_many_there_are() -> None:
    filled = [Looks(*(a_group(f"{at}-{n}") for n in range(20))) for at in range(5)]
    queues(a_view(*filled), None)
    assert [each.looked for each in filled] == [40] * 5
