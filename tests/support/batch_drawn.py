"""Drawn views for batch policies."""

from math import inf
from random import Random

from hypothesis import strategies as st

from qlm.agents.batching.view import FIRST_TOKEN_ONLY, NO_READER, Place, View
from qlm.rct_estimator.profiles.iteration import IterationTime
from support.batch_views import MACHINE, PACE, Row, view

NOW_S = 100.0


def views() -> st.SearchStrategy[View]:
    """Draw instances: those inside fit, all objectives and places occur, values may be extreme.

    An example is one seed: to draw each field by itself takes a hundred times as long.
    """
    return st.integers(0, 2**32).map(lambda seed: _view(Random(seed)))


def _view(rng: Random) -> View:
    iteration = IterationTime(
        host_ms=rng.choice([0.0, 1.0]), linear_ms=((1.0, 10.0), (2_000.0, rng.uniform(10.0, 200.0))),
        kv_ms=1e-4, sequence_ms=0.02,
    )  # fmt: skip
    machine = MACHINE._replace(
        iteration=iteration,
        kv_blocks=rng.randint(10, 400),
        seqs_max=rng.randint(1, 20),
        link_bytes_per_s=rng.choice([0.0, 1e9, 20e9]),
        load_free_s=NOW_S + rng.uniform(-1.0, 5.0),
    )
    left, slots, rows = machine.kv_blocks, machine.seqs_max, []
    for number in range(rng.randint(0, 25)):
        row = _row(rng, number)
        takes = -(-(row.prompt + row.generated + 1) // machine.block_tokens) + 1
        if row.place is not Place.OUTSIDE and (takes > left or slots == 0):
            row.place = Place.OUTSIDE
        if row.place is not Place.OUTSIDE:
            left, slots = left - takes, slots - 1
        rows.append(row)
    mean = rng.choice([0.0, 1.0, 200.0])
    pace = PACE._replace(
        step_s=rng.choice([0.0, 0.02, 0.5]), answer_mean=mean, answer_square_mean=2 * mean**2
    )
    return view(*rows, now_s=NOW_S, machine=machine, pace=pace)


def _row(rng: Random, number: int) -> Row:
    generated = rng.choice([0, 0, 1, 50, 700])
    kind = rng.choice(["reader", "deadline", "both", "first token", "batch"])
    late_s = rng.choice([0.0, 3.0, 30.0])
    prompt = rng.randint(1, 900)
    return Row(
        str(number),
        rng.choice(list(Place)),
        rng.choice([NOW_S, rng.uniform(0.0, NOW_S)]),
        prompt,
        generated,
        host_tokens=rng.randint(0, prompt + generated),
        rate={"reader": 5.0, "both": 3.3, "first token": FIRST_TOKEN_ONLY}.get(kind, NO_READER),
        ttft_s=inf if kind in ("deadline", "batch") else 1.0,
        read_end_s=NOW_S + rng.uniform(-50.0, 50.0) if generated else None,
        late_s=late_s,
        late_sum_s=late_s * generated,
        deadline_s=NOW_S + rng.choice([0.0, rng.uniform(-50.0, 50.0)])
        if kind in ("deadline", "both")
        else inf,
        rank=rng.randint(0, 3),
        pinned=rng.random() < 0.5,
    )
