"""The benchmark of the controller's loop, with few requests."""

from benchmarks.controller_loop import measure


async def test_the_loop_plans_what_waits_while_requests_come_and_go() -> None:
    share = await measure(1000, 4, 50, 1.0)
    assert share.groups >= 1000 / 50
    assert len(share.turns_s) >= 1
    assert share.passed_s >= 1.0
    assert 0.0 < sum(share.turns_s) <= 1.1 * share.loop_s
