"""Gateway workers of a `qlm serve`, found among the processes."""

from pathlib import Path


def workers_of(pid: int) -> set[int]:
    """Find the workers that a process has started."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            command = folder.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if parent == pid and b"qlm.cli.processes.worker" in command:
            found.add(int(folder.name))
    return found


def open_files(pid: int) -> int:
    """Count the open files of a process; most of a worker's are connections."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
