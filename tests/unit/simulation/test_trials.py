"""The whole system under the faults of many seeds: nothing that must hold is ever broken."""

import pytest

from simulation.settings import CONTROLLERS, GATEWAYS, INSTANCES
from simulation.trial import Trial, run_trial

SEEDS = 8  # of each commit; `make soak` runs thousands
AT_A_TIME = 4


def test_a_trial_is_as_large_as_it_should_be() -> None:
    assert (len(GATEWAYS), len(CONTROLLERS), len(INSTANCES)) == (2, 2, 3)
    trial = run_trial(0)
    assert trial.requests >= 200
    assert len(trial.faults) >= 5


@pytest.mark.parametrize("first", range(0, SEEDS, AT_A_TIME))
def test_no_fault_breaks_a_promise(first: int) -> None:
    broken = [
        _report_violations(trial)
        for trial in map(run_trial, range(first, first + AT_A_TIME))
        if trial.violations
    ]
    assert not broken, "\n".join(broken)


def test_equal_seeds_give_equal_histories() -> None:
    assert run_trial(7).events == run_trial(7).events


def _report_violations(trial: Trial) -> str:
    replay = f"python -m simulation --seed {trial.seed} --trace"
    return "\n  ".join((replay, *trial.violations[:5]))


def test_a_cancelled_request_that_another_agent_has_gone_on_with_ends() -> None:
    """Its agent registered it again and again, with fewer tokens than the log had by then."""
    assert run_trial(544_449).violations == ()


def test_requests_indexed_after_their_end_and_lost_from_the_order_of_their_class_end() -> None:
    """The store had lost their records, a gateway indexed them late, then the order was lost, too."""
    assert run_trial(548_068).violations == ()


def test_requests_accepted_while_the_store_refuses_writes_are_indexed_soon_after() -> None:
    """Some eighty of them, by a gateway that had just started; slow servers once paced the repair."""
    assert run_trial(30_269).violations == ()


def test_messages_that_a_controller_standing_still_takes_twice_are_kept() -> None:
    """RabbitMQ was restarted while it read a queue, so all that it held came again."""
    assert run_trial(600_278).violations == ()


def test_a_model_whose_engines_have_all_failed_is_served_again() -> None:
    """An engine of the other model was awake beside each: nothing started them, and no plan had a place."""
    assert run_trial(600_394).violations == ()
