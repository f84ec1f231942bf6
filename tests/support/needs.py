"""What tests do where a server that they need is not installed."""

import os

import pytest


def need(missing: str | None) -> None:
    """Skip where something is missing; fail where it has to be: in CI and in `make test`.

    Args:
        missing: What is missing, and how to get it; None if nothing is.
    """
    if missing is None:
        return
    if os.environ.get("CI") or os.environ.get("QLM_REQUIRE_SERVERS") == "1":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)
