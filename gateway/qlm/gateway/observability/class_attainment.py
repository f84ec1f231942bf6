"""How many of the latest requests of each class met their objective, by their records."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from qlm.domain.attainment import Attainment, recorded_attainment
from qlm.domain.ports.store import GatewayStore
from qlm.domain.request import RequestRecord, RequestState
from qlm.domain.view import RequestFilter
from qlm.gateway.api.fields.queues import ClassAttainment

WINDOW_S: Final = 600.0
"""Requests that ended longer ago do not count."""

RECORDS_MAX: Final = 500
"""Latest requests that count: a look must not keep the store busy."""

_Class = tuple[str, str, int]


async def class_attainment(store: GatewayStore, now_ns: int) -> Sequence[ClassAttainment]:
    """Return the attainment of each class with an objective that had a request end within `WINDOW_S`."""
    ended = await store.records(RequestFilter(state=RequestState.ENDED, limit=RECORDS_MAX))
    return counted(ended, now_ns)


def counted(ended: Iterable[RequestRecord], now_ns: int) -> Sequence[ClassAttainment]:
    """Count ended requests by class; a demoted request counts for the class in which it arrived."""
    judged: defaultdict[_Class, list[Attainment]] = defaultdict(list)
    for record in ended:
        found = recorded_attainment(record, now_ns)
        if found.met is not None and now_ns - (record.ended_ns or 0) <= WINDOW_S * 1e9:
            cls = record.metadata.cls
            judged[(cls.model, cls.slo, cls.priority)].append(found)
    return [_fields(cls, each) for cls, each in sorted(judged.items())]


def _fields(cls: _Class, judged: Sequence[Attainment]) -> ClassAttainment:
    model, slo_class, priority = cls
    late_s = [each.late_by_s for each in judged if each.late_by_s]
    return {
        "model": model,
        "slo_class": slo_class,
        "priority": priority,
        "judged": len(judged),
        "missed": sum(not each.met for each in judged),
        "mean_late_by_s": sum(late_s) / len(late_s) if late_s else None,
        "max_late_by_s": max(late_s, default=None),
    }
