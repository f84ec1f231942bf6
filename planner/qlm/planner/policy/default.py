"""The default policy."""

from typing import Final

DEFAULT_POLICY: Final = "qlm"
"""Policy of `qlm serve` (`planner`), `qlm simulate` and `qlm evaluate rct` if none is named: the plan
generator with the rules of the default configuration."""
