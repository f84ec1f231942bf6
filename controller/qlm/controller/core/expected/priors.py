"""Errors that forecasts are assumed to have before any came out, by turn and horizon.

Quantiles of the logarithm of (actual + 2 s) over (forecast + 2 s), at `PRIOR_SHARES`. Those of models that
share an instance were measured under `qlm` on the drawn scenarios 2, 6, 7, 10, 13, 15, 16 and 22 at loads of
0.8 or 1.2 (450 requests, seed 1), each run with the same weight. Drawn scenario 4 helped to choose the rule
that applies them; no other scenario of decision 25 took part. Those of the first turn count only
beside outcomes: `ForecastErrors.corrected`.
"""

from typing import Final

from qlm.rct_estimator.forecast_errors import Quantiles

WAITS: Final[Quantiles] = (
    (
        (-0.5, -0.3, -0.1, 0.0, 0.1, 0.3, 0.5),
        (-0.5, -0.3, -0.1, 0.0, 0.1, 0.3, 0.5),
        (-0.5, -0.3, -0.1, 0.0, 0.1, 0.3, 0.5),
        (-0.5, -0.3, -0.1, 0.0, 0.1, 0.3, 0.5),
        (-0.5, -0.3, -0.1, 0.0, 0.1, 0.3, 0.5),
    ),
    (
        (-0.7, -0.4, -0.2, 0.7, 3.6, 4.6, 4.8),
        (-1.4, -1.0, 0.0, 2.0, 3.1, 3.9, 4.2),
        (-1.2, -0.9, -0.2, 0.1, 1.7, 2.6, 2.7),
        (-1.2, -0.9, -0.4, -0.1, 0.4, 2.1, 2.4),
        (-2.3, -1.8, -0.3, 0.0, 0.3, 0.9, 1.0),
    ),
    (
        (-0.8, -0.3, 0.7, 1.4, 2.1, 3.0, 3.4),
        (-1.2, -0.7, 0.8, 1.6, 2.7, 3.7, 3.8),
        (-0.8, -0.3, 0.6, 1.3, 2.0, 2.8, 3.0),
        (-0.6, -0.4, 0.2, 0.7, 1.1, 1.7, 2.1),
        (-1.9, -1.4, -0.5, 0.1, 0.5, 1.1, 1.3),
    ),
)
"""Of the time until the last request of a group has left the queue."""

ENDS: Final[Quantiles] = (
    (
        (-0.5, -0.3, -0.1, 0.0, 0.1, 0.3, 0.5),
        (-0.5, -0.3, -0.1, 0.0, 0.1, 0.3, 0.5),
        (-0.5, -0.3, -0.1, 0.0, 0.1, 0.3, 0.5),
        (-0.5, -0.3, -0.1, 0.0, 0.1, 0.3, 0.5),
        (-0.5, -0.3, -0.1, 0.0, 0.1, 0.3, 0.5),
    ),
    (
        (-1.3, -0.9, -0.1, 0.5, 1.9, 3.0, 4.0),
        (-0.3, -0.1, 1.1, 2.1, 2.8, 3.8, 4.0),
        (-1.3, -1.0, -0.3, 0.3, 1.5, 2.5, 2.8),
        (-0.8, -0.5, -0.1, 0.2, 0.8, 1.9, 2.3),
        (-1.8, -0.4, -0.1, 0.1, 0.7, 1.5, 1.5),
    ),
    (
        (-0.6, -0.1, 0.5, 1.3, 2.1, 2.8, 2.8),
        (-0.6, -0.1, 0.5, 1.3, 2.1, 2.8, 2.8),
        (-0.6, -0.1, 0.5, 1.3, 2.1, 2.8, 2.8),
        (-0.9, -0.6, 0.0, 0.5, 0.9, 1.7, 2.0),
        (-1.5, -1.2, -0.4, 0.1, 0.4, 0.9, 1.1),
    ),
)
"""Of the time until it has ended."""
