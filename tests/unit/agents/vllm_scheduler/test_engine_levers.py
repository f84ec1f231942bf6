"""Levers at a scheduler whose iterations overlap: what they do to the requests of the next one."""

from dataclasses import dataclass, field
from enum import Enum, auto

from qlm.agents.vllm_scheduler.engine_levers import hold, preempt


class Status(Enum):
    RUNNING = auto()
    PREEMPTED = auto()


@dataclass(eq=False)
class Request:
    status: Status = Status.RUNNING
    next_decode_eligible_step: int = 0
    last_step: int = 0


@dataclass
class Scheduler:
    """The part of vLLM's that the levers use; one iteration is computed while the next is scheduled.

    Args:
        connected: It has a KV connector, so that blocks which are written stay.
    """

    requests: dict[str, Request]
    connected: bool = False
    requires_kv_delivery: bool = False
    current_step: int = 0
    running: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.running = [each for each in self.requests.values() if each.status is Status.RUNNING]

    def schedule(self) -> list[str]:
        """Schedule an iteration, then end the one before; return who is in the former."""
        self.current_step += 1
        chosen = [each for each in self.running if each.next_decode_eligible_step <= self.current_step]
        for each in chosen:
            each.last_step = self.current_step
        return [id for id, each in self.requests.items() if each in chosen]

    def _request_blocks_can_be_freed(self, request: Request) -> bool:
        return not self.connected or request.last_step < self.current_step

    def _preempt_request(self, request: Request, now_s: float, drop_stale_output: bool) -> None:
        assert request not in self.running
        request.status = Status.PREEMPTED


def test_a_request_in_flight_is_preempted_at_once_without_a_connector() -> None:
    scheduler = Scheduler({"a": Request(), "b": Request()})
    scheduler.schedule()
    assert preempt(scheduler, ["a"], 1.0) == 1
    assert scheduler.schedule() == ["b"]


def test_with_a_connector_a_request_in_flight_is_preempted_an_iteration_later() -> None:
    """It is in no iteration meanwhile: else it would always be in flight, and never be preempted."""
    scheduler = Scheduler({"a": Request(), "b": Request()}, connected=True)
    assert scheduler.schedule() == ["a", "b"]
    assert preempt(scheduler, ["a"], 1.0) == 0
    assert scheduler.schedule() == ["b"]
    assert preempt(scheduler, ["a"], 1.1) == 1
    assert scheduler.requests["a"].status is Status.PREEMPTED
    assert scheduler.running == [scheduler.requests["b"]]


def test_a_preempted_request_is_not_preempted_again() -> None:
    scheduler = Scheduler({"a": Request()})
    assert [preempt(scheduler, ["a", "ended"], 1.0) for _ in range(2)] == [1, 0]


def test_a_hold_is_for_the_next_iteration_only() -> None:
    scheduler = Scheduler({"a": Request(), "b": Request(), "c": Request(Status.PREEMPTED)})
    scheduler.schedule()
    assert hold(scheduler, ["a", "c", "ended"]) == 1
    assert scheduler.schedule() == ["b"]
    assert scheduler.schedule() == ["a", "b"]


def test_a_hold_makes_no_request_eligible_earlier() -> None:
    """With pipeline parallelism, vLLM lets a request wait until its token has come from the last stage."""
    scheduler = Scheduler({"a": Request(next_decode_eligible_step=4)})
    hold(scheduler, ["a"])
    assert [scheduler.schedule() for _ in range(4)] == [[], [], [], ["a"]]
