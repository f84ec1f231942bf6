"""Servers that several suites use."""

from collections.abc import Iterator

import pytest

from support.needs import need
from support.rabbitmq import RabbitMQ, missing, running_rabbitmq


@pytest.fixture(scope="session")
def quorum_rabbitmq() -> Iterator[RabbitMQ]:
    """A node of its own: all queues of a cluster have one type, that of the queue registry included."""
    need(missing())
    with running_rabbitmq() as node:
        yield node
