"""Where the gateway under test is: QLM_URL and QLM_MODEL, which `make clients` sets."""

import os

import pytest


@pytest.fixture(scope="session")
def url() -> str:
    """Return the address of the gateway, without a path."""
    return os.environ["QLM_URL"]


@pytest.fixture(scope="session")
def model() -> str:
    """Return the model's name."""
    return os.environ["QLM_MODEL"]
