"""Address of the gateway under test, and features of its model; `make clients` sets it."""

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


@pytest.fixture(scope="session")
def takes_images() -> bool:
    """Return whether the model takes images."""
    return bool(os.environ["QLM_TAKES_IMAGES"])
