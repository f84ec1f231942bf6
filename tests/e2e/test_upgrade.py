"""Rolling updates on real processes, RabbitMQ and Redis, under load; `make upgrade` is the longer form."""

import random
from pathlib import Path

import pytest

from benchmarks.upgrade.play import FORWARD, play


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("start_rabbitmq", "start_redis")
async def test_an_update_that_brings_a_model_loses_repeats_and_breaks_nothing(tmp_path: Path) -> None:
    older = ("agent-launched-1", "agent-attached")
    made = await play(tmp_path, random.Random("an update"), (FORWARD,), left_out=older)
    (roll,) = made.rolls
    reported = [*(each.line() for each in roll.restarts), *made.verdict.incidents]
    assert len(roll.restarts) == 5
    assert made.clean, "\n".join(reported)
    assert all(made.verdict.accepted[kind] for kind in ("stream", "plain", "async"))
    assert made.of_more, "nobody was answered by the model that the update brought"
    assert roll.cuts, f"no answer of {roll.open} under way was cut off by a gateway that stops"
