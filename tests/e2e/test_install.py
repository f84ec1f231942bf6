"""A wheel in an empty virtual environment gives a `qlm` that serves a request."""

from pathlib import Path

import pytest

from scripts.installs import LEFT_OUT, WHEEL, install, known

INSTALL_S = 360
SIZE_MAX_MB = 450


@pytest.mark.servers
@pytest.mark.timeout(INSTALL_S)
def test_a_base_installation_serves_a_request(tmp_path: Path) -> None:
    done = install(WHEEL, tmp_path)
    assert done.bytes <= SIZE_MAX_MB * 1e6


def test_every_extra_that_needs_no_gpu_can_be_checked() -> None:
    assert {".", WHEEL, "planner", "plots", "ray", "all"} <= set(known())
    assert not set(LEFT_OUT) & set(known())
