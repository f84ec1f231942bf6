"""Limits of connections, and the descriptors that they need."""

import subprocess
import sys

import pytest

from qlm.cli.config.default import emulated_config
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.listeners.access import RESERVED, connection_limits
from qlm.gateway.core.connection_limits import client_of

HTTP_ALONE = {"grpc": {"port": 0}}


def test_with_enough_descriptors_the_limits_are_those_of_the_file() -> None:
    config = emulated_config({"connections": {"connections_max": 500}, **HTTP_ALONE})
    asked: list[int] = []

    def allow(wanted: int) -> int:
        asked.append(wanted)
        return wanted

    assert connection_limits(config, allow) == (config.connections, None)
    assert connection_limits(emulated_config({"connections": {"connections_max": 500}}), allow)[1] is None
    assert asked == [RESERVED + 500, RESERVED + 1000]


def test_with_fewer_descriptors_fewer_connections_are_accepted_and_the_log_says_so() -> None:
    limits, warning = connection_limits(emulated_config({}), lambda wanted: 1024)
    assert limits.connections_max == (1024 - RESERVED) // 2
    assert warning == (
        "connections.connections_max is 10000, and this process may open 1024 files, enough for 256 "
        "connections on each listener; set LimitNOFILE=20512 in its unit, or run it after `ulimit -n 20512`"
    )


def test_without_a_descriptor_for_any_client_it_does_not_start() -> None:
    with pytest.raises(
        ConfigError, match="this process may open 256 files, too few for any; set LimitNOFILE"
    ):
        connection_limits(emulated_config(HTTP_ALONE), lambda wanted: 256)


def test_behind_a_proxy_no_address_is_that_of_one_client() -> None:
    config = emulated_config({"http": {"behind_proxy": True}})
    limits, _ = connection_limits(config, lambda wanted: wanted)
    for address in ("203.0.113.7", "2001:db8::1", "127.0.0.1"):
        assert client_of(limits.shared_addresses)(address) is None


@pytest.mark.parametrize(("hard", "allowed"), [(4000, 3000), (2000, 2000)])
def test_the_soft_limit_is_raised_as_far_as_the_hard_one_allows(hard: int, allowed: int) -> None:
    program = (
        "import resource\n"
        "from qlm.gateway.http.connections.descriptors import allow_descriptors\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (1024, {hard}))\n"
        "print(allow_descriptors(100), allow_descriptors(3000), allow_descriptors(100))\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == f"1024 {allowed} {allowed}\n"
