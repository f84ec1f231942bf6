"""The virtual queue of one instance: the order in which it serves request groups (QLM, definition 4.2)."""

from collections import Counter

from qlm.domain.errors import InvalidValueError
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.values import value


@value
class ClassForecast:
    """What a plan expects of a class on one instance.

    Attributes:
        cls: The class.
        service_s: Time between the ends of two of its requests in a full batch, seconds.
        answer_s: Mean time from a batch slot to the end of an answer, seconds.
        rate_rps: Expected arrivals for this instance, requests per second.
    """

    cls: RequestClass
    service_s: float
    answer_s: float
    rate_rps: float


@value
class VirtualQueue:
    """Groups in the order in which one instance pulls from them.

    Attributes:
        instance: The instance.
        version: Grows with each change of the order.
        groups: Groups, first served first.
        forecasts: Of the classes that the instance may serve.
        homes: Models that the placement gives the instance, the one with the most arrivals first; empty
            without a placement.
    """

    instance: InstanceId
    version: int = 0
    groups: tuple[Group, ...] = ()
    forecasts: tuple[ClassForecast, ...] = ()
    homes: tuple[ModelId, ...] = ()

    def __post_init__(self) -> None:
        if len({group.id for group in self.groups}) < len(self.groups):
            twice = [group for group, times in Counter(g.id for g in self.groups).items() if times > 1]
            raise InvalidValueError("virtual_queue.groups", twice, "each group at most once")
