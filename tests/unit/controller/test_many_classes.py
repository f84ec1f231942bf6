"""What a view costs where there are many classes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from qlm.controller.core.estimating.state import NOTHING_LEARNED, learn
from qlm.domain.group import RequestClass
from support.estimating import CHAT, NOW_NS, S, seen, steady_fleet, view_of


def looks_per_class(count: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return how often a class is hashed or compared while as many are silent as are read again."""
    silent, present = (
        [replace(CHAT, slo=f"{name}-{number}") for number in range(count)] for name in ("silent", "present")
    )
    state, fleet = NOTHING_LEARNED, steady_fleet(16)
    for at_s, classes in ((0, silent), (20, present)):
        view = view_of(*(seen(cls) for cls in classes))
        state = learn(state, view, now_ns=NOW_NS + at_s * S, fleet=fleet)
    looks = Counter[str]()
    with monkeypatch.context() as patch:
        for name in ("__hash__", "__eq__"):
            patch.setattr(RequestClass, name, counting(getattr(RequestClass, name), looks))
        learn(state, view, now_ns=NOW_NS + 40 * S, fleet=fleet)
    return looks.total() / count


def counting(method: Callable[..., object], looks: Counter[str]) -> Callable[..., object]:
    def called(*arguments: object) -> object:
        looks[method.__name__] += 1
        return method(*arguments)

    return called


def test_a_view_costs_each_class_the_same_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (looks_per_class(count, monkeypatch) for count in (10, 80))
    assert many < 1.5 * few
