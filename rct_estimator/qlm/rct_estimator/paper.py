"""What the QLM paper says of the estimator, which tests hold it against."""

from typing import Final

WAITING_R2: Final = 0.99
"""Coefficient of determination of waiting time against queue position; QLM, section 2.4, figure 3."""
