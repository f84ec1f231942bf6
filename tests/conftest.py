"""Fixtures for the whole test suite: real servers, started on first use, gone at the end.

Session fixtures share one server among all tests of a process; under pytest-xdist each worker has its own.
A test that kills its server, or needs settings, takes a `start_*` factory and gets private servers.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import settings

from support import prometheus as prometheus_support
from support import rabbitmq as rabbitmq_support
from support import redis as redis_support
from support import vllm_cpu
from support.computing import computes_only
from support.needs import need
from support.prometheus import Prometheus, running_prometheus
from support.rabbitmq import RabbitMQ, running_rabbitmq
from support.redis import RedisServer, running_redis
from support.s3 import missing, running_s3
from support.shared_context import share_context
from support.vllm_cpu import VllmOptions, VllmServer, running_vllm

# No deadlines: the time of an example depends on the machine. CI draws the same examples in each run, so that
# no commit fails by chance; `make soak` draws many new ones.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("soak", deadline=None, max_examples=300)
# The workers of pytest-xdist have it, and shells do not pass it on: output into a pipe would be cut to it.
os.environ.pop("COLUMNS", None)
share_context()

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "local"))


_MARKER_OF_FIXTURE = {
    "rabbitmq": "servers",
    "start_rabbitmq": "servers",
    "redis_server": "servers",
    "start_redis": "servers",
    "start_prometheus": "servers",
    "vllm_server": "vllm",
    "start_vllm": "vllm",
}
_TESTS = Path(__file__).parent
_LATER = ("vllm", "alone")
_LATER_FOLDERS = tuple(_TESTS / name for name in ("contract", "integration", "e2e"))
"""Where `make test` looks for tests with these marks: to collect the others takes half a minute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by the servers it takes, so that `-m "not servers and not vllm"` is the fast suite.

    Tests with servers come first: they wait more than they compute. Those that compute only are marked, too.
    """
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if marker := _MARKER_OF_FIXTURE.get(fixture):
                item.add_marker(marker)
        _mark_what_computes(item)
        for name in filter(item.get_closest_marker, _LATER):
            if not any(each in item.path.parents for each in _LATER_FOLDERS):
                where = "move it below tests/integration or tests/e2e"
                raise pytest.UsageError(f"{item.nodeid} is marked {name}; {where}")
    items.sort(key=lambda item: item.get_closest_marker("servers") is None)


def _mark_what_computes(item: pytest.Item) -> None:
    takes_servers = any(item.get_closest_marker(name) for name in ("servers", "vllm"))
    if (
        isinstance(item, pytest.Function)
        and not takes_servers
        and computes_only(item.path, vars(item.module))
    ):
        item.add_marker("computes")


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """Return a RabbitMQ node shared by the session; give queues names of your own."""
    need(rabbitmq_support.missing())
    with running_rabbitmq() as node:
        yield node


@pytest.fixture
def start_rabbitmq() -> Iterator[Callable[..., RabbitMQ]]:
    """Return a function that starts a private node; its arguments are those of `running_rabbitmq`."""
    need(rabbitmq_support.missing())
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(running_rabbitmq(**settings))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """Return a Redis shared by the session; use a key prefix of your own, or `flush()`."""
    need(redis_support.missing())
    with running_redis() as server:
        yield server


@pytest.fixture
def start_redis() -> Iterator[Callable[..., RedisServer]]:
    """Return a function that starts a private Redis; its arguments are those of `running_redis`."""
    need(redis_support.missing())
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(running_redis(**settings))


@pytest.fixture
def start_prometheus() -> Callable[..., AbstractContextManager[Prometheus]]:
    """Return a function that starts a private Prometheus; its arguments are those of `running_prometheus`."""
    need(prometheus_support.missing())
    return running_prometheus


@pytest.fixture(scope="session")
def vllm_server() -> Iterator[VllmServer]:
    """Return a vLLM on the CPU with the tiny model (served as `tiny`) and a parser of tool calls, shared."""
    need(vllm_cpu.missing())
    with running_vllm(
        VllmOptions(extra_args=("--enable-auto-tool-choice", "--tool-call-parser", "hermes"))
    ) as server:
        yield server


@pytest.fixture
def start_vllm() -> Iterator[Callable[..., VllmServer]]:
    """Return a function that starts a private vLLM; its argument is that of `running_vllm`."""
    need(vllm_cpu.missing())
    with contextlib.ExitStack() as stack:
        yield lambda *options: stack.enter_context(running_vllm(*options))


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    """Yield the URL of an S3 server."""
    need(missing())
    with running_s3() as url:
        yield url
