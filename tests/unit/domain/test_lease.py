"""What an agent does about an instance that another session has the lease of."""

from dataclasses import replace

import pytest

from qlm.domain.ids import SessionId
from qlm.domain.lease import AgentProcess, Claim, InstanceHeld, claim

OLD = AgentProcess(
    host="node-7",
    pid=41,
    start_ticks=1000,
    boot_id="boot-1",
    pid_namespace="pid:[1]",
    began_ns=1_763_900_000_000_000_000,
)
NEW = replace(OLD, pid=57, start_ticks=2000)
HELD = InstanceHeld(session=SessionId("s1"), process=OLD, lapses_in_s=3.5)


@pytest.mark.parametrize("overdue", [False, True])
def test_an_ended_process_of_the_same_machine_is_replaced_at_once(overdue: bool) -> None:
    assert claim(HELD, NEW, ended=True, overdue=overdue) is Claim.TAKE_OVER


def test_an_earlier_session_of_the_same_process_is_replaced_at_once() -> None:
    """One process runs one session of an instance after the other."""
    again = replace(OLD, began_ns=OLD.began_ns + 1)
    assert claim(HELD, again, ended=False, overdue=False) is Claim.TAKE_OVER
    reused = replace(OLD, start_ticks=OLD.start_ticks + 1)
    assert claim(HELD, reused, ended=False, overdue=False) is Claim.WAIT


@pytest.mark.parametrize(
    "this",
    [
        replace(NEW, boot_id="boot-2"),
        replace(OLD, host="node-8"),
        replace(NEW, pid_namespace="pid:[2]"),
        replace(OLD, pid_namespace="pid:[2]"),
        None,
    ],
)
@pytest.mark.parametrize("ended", [False, True])
def test_a_process_that_cannot_be_seen_from_here_keeps_its_lease_until_it_lapses(
    this: AgentProcess | None, ended: bool
) -> None:
    """Its id says nothing here, whether a process has it or not."""
    assert claim(HELD, this, ended=ended, overdue=False) is Claim.WAIT
    assert claim(HELD, this, ended=ended, overdue=True) is Claim.GIVE_UP


def test_processes_of_unknown_boots_do_not_see_each_other() -> None:
    unknown = replace(OLD, boot_id="", pid_namespace="")
    refusal = replace(HELD, process=unknown)
    assert claim(refusal, replace(unknown, pid=57), ended=True, overdue=False) is Claim.WAIT
    assert claim(refusal, unknown, ended=True, overdue=False) is Claim.WAIT


def test_an_agent_of_an_earlier_version_is_waited_for() -> None:
    refusal = replace(HELD, process=None)
    assert claim(refusal, NEW, ended=False, overdue=False) is Claim.WAIT
    assert claim(refusal, NEW, ended=False, overdue=True) is Claim.GIVE_UP


def test_a_living_process_is_waited_for_since_it_may_hang() -> None:
    assert claim(HELD, NEW, ended=False, overdue=False) is Claim.WAIT
    assert claim(HELD, NEW, ended=False, overdue=True) is Claim.GIVE_UP


def test_a_holder_is_named_by_process_host_session_and_time() -> None:
    assert str(HELD) == "process 41 on node-7, session s1, since 2025-11-23 12:13:20 UTC"
    assert str(replace(HELD, process=None)) == "session s1 of an earlier version"
