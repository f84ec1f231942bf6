"""Output limits are the context where clients name none; what is expected must not follow from them."""

import pytest

from qlm.controller.core.estimating.classes import class_posterior
from qlm.domain.group import request_class
from qlm.domain.ids import ModelId
from qlm.domain.length_histogram import LENGTH_BINS, LengthHistogram, length_bin
from qlm.domain.slo import DeadlineSlo
from qlm.domain.view import ClassView

CLS = request_class(ModelId("m"), DeadlineSlo(deadline_ms=60_000), 0)


def expected_tokens(limit: float, lengths: LengthHistogram) -> float:
    view = ClassView(
        cls=CLS, queued=3, groups=(), mean_prompt_tokens=100.0, mean_max_tokens=limit, lengths=lengths
    )
    return class_posterior(view).workload.output.mean


@pytest.mark.parametrize("answers", [0, 30])
def test_a_limit_far_beyond_the_answers_changes_no_expectation(answers: int) -> None:
    ended = tuple(answers if at == length_bin(150) else 0 for at in range(LENGTH_BINS))
    lengths = LengthHistogram(ended=ended, ended_tokens=tuple(150 * count for count in ended))
    usual = expected_tokens(4096, lengths)
    assert expected_tokens(131_072, lengths) == pytest.approx(usual, rel=0.05)
    assert usual < 400
