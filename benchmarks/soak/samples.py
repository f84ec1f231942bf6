"""Readings of everything that may grow: each process, its files, and the queues and keys of the servers."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import redis

from benchmarks.process_figures import group_figures
from benchmarks.setups import Running
from support.cluster_load import depths

Sample = Mapping[str, float]
"""Figures by name: `PROCESS: FIGURE`."""

DISK: Final = "disk, MB"
"""Figure of the files of a process."""


def sample(qlm: Running) -> Sample:
    """Take a reading."""
    found: dict[str, float] = {}
    for name, (group, folder) in qlm.members.items():
        figures = group_figures(group)
        found |= {
            f"{name}: RSS, MB": figures.rss_mb,
            f"{name}: PSS, MB": figures.pss_mb,
            f"{name}: descriptors": figures.descriptors,
            f"{name}: threads": figures.threads,
            f"{name}: {DISK}": disk_mb(folder),
        }
    for process in qlm.processes:
        found[f"{process.name}: log, lines"] = process.log_file.read_bytes().count(b"\n")
    return found | (_servers(qlm) if qlm.servers else _embedded(qlm.data))


def disk_mb(folder: Path) -> float:
    """Return the size of all files below a folder."""
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:
            continue  # deleted meanwhile
    return total / 2**20


def rows(data: Path) -> dict[str, int]:
    """Return the number of rows of each table of the embedded queue."""
    with _opened(data) as connection:
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}


def journal_kinds(data: Path) -> dict[str, int]:
    """Return the number of entries of each kind in the journal of the embedded queue."""
    with _opened(data) as connection:
        entries = connection.execute("SELECT key FROM journal").fetchall()
    return Counter(key.partition("/")[0] for (key,) in entries)


def keys(store: str) -> dict[str, int]:
    """Return the number of keys of each kind in Redis."""
    kinds: dict[str, int] = {}
    with redis.Redis.from_url(store) as client:
        for key in client.scan_iter(count=1000):
            words = key.decode("utf-8", "replace").split(":")
            kinds[words[1]] = kinds.get(words[1], 0) + 1
    return kinds


@contextmanager
def _opened(data: Path) -> Iterator[sqlite3.Connection]:
    file = next(data.glob("*.sqlite"))
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        yield connection


def _embedded(data: Path) -> dict[str, float]:
    return {f"SQLite: rows of {name}": count for name, count in rows(data).items()}


def _servers(qlm: Running) -> dict[str, float]:
    waiting = depths(qlm.servers["broker"])
    with redis.Redis.from_url(qlm.servers["store"]) as client:
        return {
            "Redis: keys": client.dbsize(),
            "Redis: data, MB": client.info("memory")["used_memory"] / 2**20,
            "RabbitMQ: queues": len(waiting),
        }
