"""Choice of classes: few are apart, a flood of objectives shares a bounded number."""

import random

from qlm.domain.group import RequestClass, request_class
from qlm.domain.ids import ModelId
from qlm.domain.slo import DEADLINE_MAX_MS, BatchSlo, DeadlineSlo, Slo, TokenSlo
from qlm.gateway.core.class_choice import WINDOW_NS, ClassChoice

M = ModelId("m")
CLASSES_MAX = 8
USUAL = TokenSlo(ttft_ms=1000, tpot_ms=100)


def any_slo(rng: random.Random) -> Slo:
    longest = DEADLINE_MAX_MS / 0.01
    first_ms = 0.01 * longest ** rng.random()
    if rng.random() < 0.5:
        return DeadlineSlo(deadline_ms=first_ms)
    return TokenSlo(ttft_ms=first_ms, tpot_ms=0.01 * longest ** rng.random())


def flood(
    choice: ClassChoice, rng: random.Random, requests: int, now_ns: int = 0
) -> list[tuple[Slo, RequestClass]]:
    slos = [any_slo(rng) for _ in range(requests)]
    return [(slo, choice.of(M, slo, 0, now_ns)) for slo in slos]


def test_few_classes_are_those_of_the_grid() -> None:
    choice = ClassChoice(10, CLASSES_MAX)
    for second in range(1, CLASSES_MAX + 1):
        slo = TokenSlo(ttft_ms=1000 * second, tpot_ms=40)
        assert choice.of(M, slo, 0, 0) == request_class(M, slo, 0)


def test_a_hundred_thousand_objectives_share_as_few_classes_as_a_hundred() -> None:
    of_hundred = ClassChoice(10, CLASSES_MAX)
    slos = [any_slo(random.Random(seed)) for seed in range(100)]
    few = {of_hundred.of(M, slo, 0, 0) for _ in range(10) for slo in slos}
    many = {cls for _, cls in flood(ClassChoice(10, CLASSES_MAX), random.Random(1), 100_000)}
    assert len(many) <= 1.1 * len(few)
    assert len(many) < 8 * CLASSES_MAX


def test_no_class_is_less_strict_than_a_member_and_none_mixes_kinds() -> None:
    for slo, cls in flood(ClassChoice(3, CLASSES_MAX), random.Random(2), 3000):
        assert slo.target_ms is not None and cls.target_ms is not None
        assert cls.target_ms <= slo.target_ms * (1 + 1e-9)
        assert cls.slo.startswith("deadline-" if isinstance(slo, DeadlineSlo) else "ttft-")


def test_a_much_used_class_stays_apart_from_a_flood() -> None:
    choice, rng = ClassChoice(10, CLASSES_MAX), random.Random(3)
    apart = 0
    for _ in range(1000):
        choice.of(M, any_slo(rng), 0, 0)
        choice.of(M, any_slo(rng), 0, 0)
        apart += choice.of(M, USUAL, 0, 0) == request_class(M, USUAL, 0)
    assert apart == 1000


def test_classes_are_apart_again_once_the_flood_is_over() -> None:
    choice = ClassChoice(10, CLASSES_MAX)
    flood(choice, random.Random(4), 1000)
    rare = TokenSlo(ttft_ms=777, tpot_ms=33)
    assert choice.of(M, rare, 0, WINDOW_NS) != request_class(M, rare, 0), "the flood was in the last window"
    assert choice.of(M, rare, 0, 3 * WINDOW_NS) == request_class(M, rare, 0)


def test_priority_and_batch_work_are_never_mixed() -> None:
    choice = ClassChoice(10, 1)
    flood(choice, random.Random(5), 100)
    assert choice.of(M, BatchSlo(), 3, 0) == request_class(M, BatchSlo(), 3)
    assert choice.of(M, USUAL, -4, 0).priority == -4
