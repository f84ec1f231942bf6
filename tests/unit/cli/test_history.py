"""`qlm history`: what is known of each model, and how old it is."""

from rich.console import Console

from qlm.cli.inspect.history import history_tables
from qlm.controller.core.estimating.arrivals import KEPT_S, Arrivals
from qlm.controller.core.history.classes import ClassRecord
from qlm.controller.core.history.history import History
from qlm.controller.core.history.speeds import SpeedRecord
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId
from qlm.rct_estimator.correction import Correction
from support.estimating import BATCH, CHAT, NOW_NS, OTHER, M, S, class_record


def record(tokens: float, answers: int, *, age_s: float = 0.0) -> ClassRecord:
    return class_record(tokens, answers, NOW_NS - round(age_s * S))


def shown(history: History, *, later_s: float = 0.0) -> list[list[str]]:
    console = Console(width=200)
    with console.capture() as capture:
        for table in history_tables(history, NOW_NS / 1e9 + later_s):
            console.print(table)
    return [line.split() for line in capture.get().splitlines()]


def test_classes_are_added_up_by_model_and_kind_of_objective() -> None:
    later = RequestClass(M, "deadline-64s", target_ms=70_000.0)
    rate = Arrivals(NOW_NS, 0, asked=60.0, asked_s=120.0, past=60.0, past_s=120.0, present_ns=NOW_NS)
    history = History(
        at_ns=NOW_NS,
        classes={
            CHAT: record(20, 30, age_s=60),
            later: record(50, 10),
            BATCH: record(0, 0),
            OTHER: record(7, 1),
        },
        arrivals={CHAT: rate, later: rate},
        speeds={
            (InstanceId("gpu-0"), M): SpeedRecord(
                at_ns=NOW_NS, accelerator="A10", correction=Correction(log_ratio=0.2, log_var=0.0004)
            )
        },
    )
    rows = shown(history)
    assert ["m", "batch", "1", "0", "-", "-", "-", "0.0s", "ago"] in rows
    assert ["m", "deadline", "2", "40", "28", "300", "1", "0.0s", "ago"] in rows
    assert ["n", "deadline", "1", "1", "7", "300", "-", "0.0s", "ago"] in rows
    assert ["gpu-0", "m", "1.22", "2.5", "%", "0.0s", "ago"] in rows
    old = shown(history, later_s=KEPT_S)
    assert ["m", "deadline", "2", "40", "28", "300", "-", "60min", "ago"] in old, "its rate is forgotten"
