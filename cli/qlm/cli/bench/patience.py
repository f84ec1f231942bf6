"""Patience of the client of `qlm bench`."""

from typing import Final

PATIENCE_S: Final = 300.0
"""Time after which a request is given up, unless another is asked for."""
