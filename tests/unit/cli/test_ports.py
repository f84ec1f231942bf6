"""Listeners of one process have ports of their own, whatever names their hosts have."""

from contextlib import AsyncExitStack

import pytest

from qlm.cli.config.default import emulated_config
from qlm.cli.config.settings import Config
from qlm.cli.runtime.listeners import CannotListenError, bind_ports
from support.ports import free_port


def with_ports(http: str, admin: str, port: int, admin_port: int, grpc_port: int = 0) -> Config:
    config = emulated_config({})
    return config.model_copy(
        update={
            "http": config.http.model_copy(update={"host": http, "port": port}),
            "admin": config.admin.model_copy(update={"host": admin, "port": admin_port}),
            "grpc": config.grpc.model_copy(update={"port": grpc_port}),
        }
    )


@pytest.mark.parametrize(
    ("http", "admin"), [("127.0.0.1", "localhost"), ("0.0.0.0", "127.0.0.2"), ("127.0.0.1", "0.0.0.0")]
)
async def test_a_port_that_two_listeners_would_share_is_refused(http: str, admin: str) -> None:
    port = free_port()
    async with AsyncExitStack() as stack:
        with pytest.raises(CannotListenError, match="another listener has it; give --admin-port"):
            bind_ports(with_ports(http, admin, port, port), stack)


async def test_the_port_of_grpc_is_compared_too() -> None:
    port, rpc = free_port(), free_port()
    async with AsyncExitStack() as stack:
        with pytest.raises(CannotListenError, match="--admin-port"):
            bind_ports(with_ports("127.0.0.1", "localhost", port, rpc, rpc), stack)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
async def test_an_address_of_another_machine_is_named_as_such(host: str) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(CannotListenError, match="; give an address of this machine"):
            bind_ports(with_ports(host, "127.0.0.1", free_port(), free_port()), stack)


@pytest.mark.parametrize("admin", [False, True])
async def test_a_port_at_which_another_process_listens_since_it_was_bound_is_named(admin: bool) -> None:
    """Two that start at once both bind it: the system refuses the second to listen."""
    port = free_port()
    async with AsyncExitStack() as stack:
        first, second = (
            bind_ports(with_ports(*hosts, *ports), stack)
            for hosts, ports in (
                (("127.0.0.1", "127.0.0.2"), (port, free_port())),
                (("127.0.0.3", "127.0.0.1") if admin else ("127.0.0.1", "127.0.0.3"), (port, port)),
            )
        )
        first.listen()
        option = "--admin-port" if admin else "--port"
        expected = (
            f"cannot listen on 127.0.0.1:{port}: address already in use; stop what uses it, or give {option}"
        )
        with pytest.raises(CannotListenError, match=f"^{expected}$"):
            second.listen()


async def test_one_port_of_two_addresses_is_fine() -> None:
    port = free_port()
    async with AsyncExitStack() as stack:
        sockets = bind_ports(with_ports("127.0.0.1", "127.0.0.2", port, port), stack)
        assert sockets.admin is not None
        assert {sockets.http.getsockname(), sockets.admin.getsockname()} == {
            ("127.0.0.1", port),
            ("127.0.0.2", port),
        }
