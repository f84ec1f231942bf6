"""What holds of Andes and TokenFlow for any view, and on a small engine in a burst."""

import random
from typing import Final

import numpy as np
import pytest

from qlm.agents.batching.policies.registry import batch_policy
from qlm.agents.batching.room import REQUESTS_MAX
from qlm.agents.batching.view import FIRST_TOKEN_ONLY, NO_READER, Place, View
from qlm.domain.streaming.reader import Reader
from qlm.rct_estimator.profiles.iteration import IterationTime
from support.batch_jobs import Job
from support.batch_toy import ToyEngine
from support.batch_views import MACHINE, PACE, Row, view

POLICIES: Final = ("andes", "tokenflow")
NOW_S: Final = 50.0
ITERATION: Final = IterationTime(
    host_ms=0.2, linear_ms=((1, 10.6), (128, 14.0), (2048, 142.0)), kv_ms=1e-4, sequence_ms=0.02
)
"""Near an 8-billion-parameter model on one A100."""


def _drawn(seed: int) -> View:
    """Draw a view whose running requests fit, of any mix of objectives and sizes."""
    draw = random.Random(seed)
    blocks, slots = draw.choice([40, 200, 1000]), draw.choice([2, 8, 64])
    rows: list[Row] = []
    left, places = blocks, slots
    for number in range(draw.randint(1, 60)):
        row = _request(draw, str(number))
        takes = -(-(row.prompt + row.generated + 1) // 16)
        if takes <= left and places and draw.random() < 0.8:
            row.place = draw.choice([Place.INSIDE, Place.INSIDE, Place.LOADING, Place.HELD])
            row.pinned = draw.random() < 0.2
            left, places = left - takes, places - 1
        elif row.generated:
            row.host_tokens = draw.choice([0, row.prompt + row.generated - 1])
        rows.append(row)
    machine = MACHINE._replace(
        iteration=ITERATION,
        kv_blocks=blocks,
        seqs_max=slots,
        host_blocks=draw.choice([0, 2000]),
        load_free_s=NOW_S + draw.choice([-1.0, 0.2]),
    )
    pace = PACE._replace(
        step_s=draw.choice([0.0, 0.02, 0.5]),
        life_s=draw.choice([0.0, 20.0]),
        preemptions=draw.choice([0, 40]),
    )
    return view(*rows, now_s=NOW_S, machine=machine, pace=pace)


def _request(draw: random.Random, name: str) -> Row:
    arrival_s, generated = draw.uniform(0, NOW_S), draw.choice([0, 1, 50, 300])
    rate = draw.choice([3.3, 4.8, 20.0, NO_READER, FIRST_TOKEN_ONLY])
    late_s = draw.choice([0.0, 0.0, 3.0])
    return Row(
        name,
        arrival_s=arrival_s,
        prompt=draw.randint(1, 300),
        generated=generated,
        rate=rate,
        ttft_s=1.0 if rate != NO_READER else np.inf,
        late_s=late_s if generated else 0.0,
        late_sum_s=late_s * generated / 2,
        deadline_s=draw.choice([np.inf, arrival_s + 20.0]),
        left_mean=float(draw.randint(1, 400)),
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(150))
def test_a_batch_fits_and_no_pinned_request_is_preempted(policy: str, seed: int) -> None:
    shown = _drawn(seed)
    decision = batch_policy(policy).decide(shown)
    rows = [shown.ids.index(id) for id in decision.run]
    assert len(set(rows)) == len(rows)
    pinned = np.flatnonzero(shown.pinned & shown.inside)
    assert set(pinned.tolist()) <= set(rows)
    if len(rows) < len(shown.ids):
        # Chosen to fit together, and not an order to admit from.
        assert len(rows) <= shown.machine.seqs_max
        assert shown.needed_blocks[rows].sum() <= shown.machine.kv_blocks
    assert decision.recompute <= {shown.ids[row] for row in np.flatnonzero(shown.host_tokens).tolist()}
    assert decision.again_s is None or decision.again_s > shown.now_s


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_views_give_equal_decisions(policy: str) -> None:
    first, second = batch_policy(policy), batch_policy(policy)
    for seed in range(60):
        shown = _drawn(seed)
        later = shown._replace(now_s=NOW_S + seed)
        assert first.decide(later) == second.decide(later)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_takes_requests_to_choose_from(policy: str) -> None:
    assert batch_policy(policy).room(view(Row("a"))) == REQUESTS_MAX - 1
    assert batch_policy(policy).room(view(*(Row(str(row)) for row in range(REQUESTS_MAX + 88)))) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_instance_is_left_alone(policy: str) -> None:
    assert not batch_policy(policy).decide(view()).run


def _burst(policy: str, *, host_blocks: int) -> ToyEngine:
    """Play a burst of which the KV cache has a quarter."""
    draw = random.Random(1)
    jobs = [
        Job(f"{row:02}", draw.randint(50, 150), draw.randint(200, 600), reader=Reader(1.0, 10.0))
        for row in range(24)
    ]
    machine = MACHINE._replace(
        iteration=ITERATION,
        kv_blocks=sum(job.prompt + job.answer for job in jobs) // 64,
        host_blocks=host_blocks,
    )
    return ToyEngine(batch_policy(policy), machine, jobs, pace=PACE._replace(life_s=0.0)).play()


@pytest.mark.parametrize("host_blocks", [0, 10_000])
@pytest.mark.parametrize("policy", POLICIES)
def test_readers_of_a_burst_idle_at_most_half_as_long_as_first_come_first_served(
    policy: str, host_blocks: int
) -> None:
    idle_s = [
        np.mean([each.timeline.late_s for each in _burst(name, host_blocks=host_blocks).played.values()])
        for name in ("fcfs", policy)
    ]
    assert idle_s[1] <= idle_s[0] / 2
