"""Facts of the operating system about this process and about former ones of this machine."""

import os
import socket
from pathlib import Path

from qlm.agents.engines.guard import boot_id, process_stat, start_ticks
from qlm.domain.lease import AgentProcess


def own_process(began_ns: int) -> AgentProcess:
    """Describe this process, in which a session began at `began_ns`."""
    pid = os.getpid()
    try:
        # A /proc of another pid namespace would show strangers under the ids of our processes.
        readable = int(Path("/proc/self").readlink().name) == pid
        boot, namespace = (boot_id(), str(Path("/proc/self/ns/pid").readlink())) if readable else ("", "")
    except (OSError, ValueError):
        boot, namespace = "", ""
    return AgentProcess(
        host=socket.gethostname(),
        pid=pid,
        start_ticks=start_ticks(pid) or 0,
        boot_id=boot,
        pid_namespace=namespace,
        began_ns=began_ns,
    )


def has_ended(process: AgentProcess) -> bool:
    """Return True if a process of this boot and pid namespace is certainly gone."""
    ticks = start_ticks(process.pid)
    if ticks is not None:
        return ticks != process.start_ticks
    if process_stat(process.pid):
        return True  # a zombie
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False  # it exists, and /proc hides it
