import random
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from qlm.broker.rabbitmq.link import Backoff


@given(st.integers())
def test_pauses_double_up_to_their_limit_with_jitter_below(seed: int) -> None:
    pauses_s = list(islice(Backoff(first_s=0.1, max_s=1.0).pauses_s(random.Random(seed)), 8))
    for pause_s, nominal_s in zip(pauses_s, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], strict=True):
        assert 0.5 * nominal_s <= pause_s <= nominal_s


def test_two_clients_do_not_come_back_in_step() -> None:
    one, other = (list(islice(Backoff().pauses_s(random.Random(seed)), 5)) for seed in (1, 2))
    assert all(a != b for a, b in zip(one, other, strict=True))
