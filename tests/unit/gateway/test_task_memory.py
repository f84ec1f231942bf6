from dataclasses import replace

import pytest

from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.ids import ModelId
from qlm.domain.request import RequestMetadata
from qlm.domain.slo import DeadlineSlo
from qlm.gateway.core.tasks import memory as tasks
from qlm.gateway.core.tasks.memory import TaskKey, TaskMemory, call_again
from support.requests import a_request

MODEL = ModelId("m")
S = 1_000_000_000
DEADLINE_NS = 1_000 * S


def due_s(memory: TaskMemory, id: str, calls: int | None, at_s: float, tenant: str = "t") -> float:
    key = TaskKey(tenant, id)
    return memory.arrived(key, MODEL, DEADLINE_NS, calls, round(at_s * S)).urgency.due_s


def end(memory: TaskMemory, id: str, first_s: float, ended_s: float, tenant: str = "t") -> None:
    memory.ended(a_call(id, tenant), round(first_s * S), round(ended_s * S))


def a_call(id: str, tenant: str = "t") -> RequestMetadata:
    extensions = RequestExtensions(task_id=id, task_calls=2, task_deadline_ns=DEADLINE_NS)
    made = a_request(deadline_ms=5_000).metadata()
    return replace(made, tenant=tenant, cls=replace(made.cls, model=MODEL), extensions=extensions)


def seen(memory: TaskMemory, *, tenant: str = "t") -> None:
    """Show a task of two calls: two seconds of tokens each, and eight seconds between them."""
    due_s(memory, "earlier", 2, 0.0, tenant)
    end(memory, "earlier", 1.0, 3.0, tenant)
    due_s(memory, "earlier", 1, 11.0, tenant)
    end(memory, "earlier", 12.0, 14.0, tenant)


def test_what_earlier_tasks_took_is_left_for_the_calls_to_come() -> None:
    memory = TaskMemory()
    assert due_s(memory, "first", 4, 900.0) == 100.0, "nothing is known yet"
    seen(memory)
    assert due_s(memory, "new", 4, 900.0) == pytest.approx(100.0 - 3 * (2.0 + 8.0))


def test_tasks_of_other_tenants_teach_nothing_and_may_have_the_same_name() -> None:
    memory = TaskMemory()
    seen(memory, tenant="other")
    assert due_s(memory, "new", 4, 900.0) == 100.0
    due_s(memory, "shared", None, 0.0, tenant="other")
    end(memory, "shared", 1.0, 2.0, tenant="other")
    due_s(memory, "shared", None, 900.0)
    assert due_s(memory, "next", 2, 900.0) == 100.0, "the pause was between calls of different tasks"


def test_without_a_number_of_calls_it_is_that_of_earlier_tasks() -> None:
    memory = TaskMemory()
    seen(memory)
    assert due_s(memory, "new", None, 900.0) == pytest.approx(90.0), "earlier ones had two calls"
    assert due_s(memory, "new", None, 900.0) == pytest.approx(100.0), "no earlier one had three"


def test_a_failed_call_teaches_no_time() -> None:
    memory = TaskMemory()
    memory.ended(a_call("failed"), None, 50 * S)
    assert due_s(memory, "new", 4, 900.0) == 100.0


def test_a_forgotten_task_counts_as_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TASKS_MAX", 1)
    memory = TaskMemory()
    due_s(memory, "a", None, 0.0)
    end(memory, "a", 1.0, 3.0)
    due_s(memory, "a", None, 11.0)
    due_s(memory, "b", None, 20.0)  # forgets the other, which had two calls
    due_s(memory, "c", None, 900.0)
    assert due_s(memory, "d", None, 900.0) == pytest.approx(100.0 - 10.0)


def test_further_requests_of_a_call_have_its_urgency() -> None:
    call = call_again(a_call("task"))
    assert call is not None
    assert (call.key, call.calls_left, call.deadline_ns) == (TaskKey("t", "task"), 3, DEADLINE_NS)
    assert (call.urgency.due_s, call.urgency.hopeless) == (5.0, False)
    assert call_again(a_request(deadline_ms=5_000).metadata()) is None


def test_a_request_without_a_task_is_ignored() -> None:
    memory = TaskMemory()
    memory.ended(replace(a_request().metadata(), slo=DeadlineSlo(deadline_ms=1)), S, 9 * S)
    assert due_s(memory, "new", 4, 900.0) == 100.0
