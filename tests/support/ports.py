"""Free ports on the loopback interface."""

import random
import socket

# Below the range from which Linux takes source ports for outgoing connections (32768 and up): a server that
# is killed and started again must find its port still free.
_LOW, _HIGH = 15_000, 32_000
_given: set[int] = set()


def free_port() -> int:
    """Return a TCP port that nothing listens on and that this process has not been given before."""
    return free_ports(1)[0]


def free_ports(count: int) -> range:
    """Return `count` TCP ports in a row, none of which this process has been given before or finds in use."""
    chance = random.SystemRandom()
    for _ in range(1_000):
        low = chance.randint(_LOW, _HIGH - count)
        ports = range(low, low + count)
        if _given.isdisjoint(ports) and all(map(_is_free, ports)):
            _given.update(ports)
            return ports
    raise RuntimeError(f"no {count} free ports in a row between {_LOW} and {_HIGH} in 1000 tries")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
