"""Processes of engines: they start and end with all their descendants, and inherit no secret."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from qlm.agents.engines.guard import MARKER_VARIABLE, boot_id, process_ids, start_ticks
from qlm.agents.engines.orphans import OrphanError, find_orphans, kill_orphans, kill_orphans_of
from qlm.agents.engines.process import EngineProcess
from qlm.domain.errors import EngineUnavailableError

SUPPORT = Path(__file__).parents[2] / "support"
WAIT_S = 10.0

# An engine as bad as vLLM can be: a child that stays, one whose environment is gone, and one in a session of
# its own that ignores SIGTERM and has a child itself. It writes down who they are.
TREE = """
import json, os, signal, subprocess, sys, time
kind, note = sys.argv[1:]
wait = [sys.executable, "-ISc", "import time; time.sleep(1000)"]
if kind == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
far = '''
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-ISc", "import time; time.sleep(1000)"])
print(child.pid, flush=True)
time.sleep(1000)
'''
near = subprocess.Popen(wait)
bare = subprocess.Popen(wait, env={})
away = subprocess.Popen(
    [sys.executable, "-ISc", far], start_new_session=True, stdout=subprocess.PIPE, text=True
)
grandchild = int(away.stdout.readline())
print("the engine is up", flush=True)
with open(note + ".new", "w") as f:
    pids = {"near": near.pid, "bare": bare.pid, "away": away.pid, "far": grandchild}
    json.dump({"main": os.getpid(), **pids}, f)
os.rename(note + ".new", note)
if kind == "failing":
    sys.exit(3)
time.sleep(1000)
"""


def tree(folder: Path, kind: str = "plain") -> list[str]:
    return [sys.executable, "-c", TREE, kind, str(folder / "tree.json")]


def wait_for(condition: Callable[[], Any]) -> Any:
    end_s = time.monotonic() + WAIT_S
    while not (value := condition()):
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.01)
    return value


def read_tree(folder: Path) -> dict[str, int]:
    note = folder / "tree.json"
    wait_for(note.exists)
    found: dict[str, int] = json.loads(note.read_text())
    return found


def gone(pids: dict[str, int]) -> bool:
    return all(start_ticks(pid) is None for pid in pids.values())


def state_files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def read_state(folder: Path) -> dict[str, Any]:
    wait_for(lambda: any(folder.glob("*.json")))  # a guard writes it once its engine has started
    (file,) = folder.glob("*.json")
    state: dict[str, Any] = json.loads(file.read_text())
    return state


@pytest.fixture
def states(tmp_path: Path) -> Path:
    (folder := tmp_path / "states").mkdir()
    return folder


@pytest.fixture
async def make(tmp_path: Path, states: Path) -> AsyncIterator[Callable[..., EngineProcess]]:
    made: list[EngineProcess] = []

    def build(*command: str, withheld: Collection[str] = (), **env: str) -> EngineProcess:
        log = tmp_path / "log"
        made.append(
            EngineProcess("e", command, env=env, log_file=log, state_folder=states, withheld=withheld)
        )
        return made[-1]

    yield build
    for engine in made:
        if not engine.exited.done():
            await engine.stop(0)


@pytest.fixture
def agent(tmp_path: Path, states: Path) -> Iterator[subprocess.Popen[str]]:
    """Run an agent in a process of its own, with the bad engine."""
    program = str(SUPPORT / "engine_agent.py")
    argv = [sys.executable, program, str(states), str(tmp_path / "log"), *tree(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        yield process
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def test_stop_asks_politely_and_leaves_no_descendant(make: Any, tmp_path: Path, states: Path) -> None:
    engine = make(*tree(tmp_path))
    await engine.start()
    pids = await asyncio.to_thread(read_tree, tmp_path)
    end = await engine.stop(WAIT_S)
    assert end.return_code == 128 + signal.SIGTERM
    assert gone(pids)
    assert state_files(states) == []
    assert engine.exited.done()


async def test_stop_kills_an_engine_that_does_not_listen(make: Any, tmp_path: Path) -> None:
    engine = make(*tree(tmp_path, "stubborn"))
    await engine.start()
    pids = await asyncio.to_thread(read_tree, tmp_path)
    end = await engine.stop(0.1)
    assert end.return_code == 128 + signal.SIGKILL
    assert gone(pids)


async def test_an_engine_that_ends_by_itself_takes_its_descendants_along(make: Any, tmp_path: Path) -> None:
    engine = make(*tree(tmp_path, "failing"))
    await engine.start()
    end = await asyncio.wait_for(engine.exited, WAIT_S)
    assert end.return_code == 3
    assert "the engine is up" in end.log_tail
    assert gone(read_tree(tmp_path))


def test_no_descendant_survives_the_kill_of_the_agent(
    agent: subprocess.Popen[str], tmp_path: Path, states: Path
) -> None:
    pids = read_tree(tmp_path)
    assert not gone(pids)
    agent.kill()
    wait_for(lambda: gone(pids))
    wait_for(lambda: not state_files(states))


async def test_an_agent_whose_guard_is_killed_does_its_work(make: Any, tmp_path: Path, states: Path) -> None:
    engine = make(*tree(tmp_path))
    await engine.start()
    pids = await asyncio.to_thread(read_tree, tmp_path)
    os.kill(read_state(states)["guard"], signal.SIGKILL)
    end = await asyncio.wait_for(engine.exited, WAIT_S)
    assert end.return_code == -signal.SIGKILL
    assert gone(pids)
    assert state_files(states) == []


async def test_stop_ends_an_engine_whose_guard_stands_still(
    make: Any, tmp_path: Path, states: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.agents.engines.process._GUARD_S", 0.2)
    engine = make(*tree(tmp_path))
    await engine.start()
    pids = await asyncio.to_thread(read_tree, tmp_path)
    os.kill(read_state(states)["guard"], signal.SIGSTOP)
    async with asyncio.timeout(WAIT_S):
        assert (await engine.stop(0.0)).return_code == -signal.SIGKILL
    assert gone(pids)
    assert state_files(states) == []


async def test_an_engine_that_is_slow_to_go_after_its_guard_was_killed_ends_when_it_has_gone(
    make: Any, tmp_path: Path, states: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = iter((0.0, 10.0))
    monkeypatch.setattr(
        "qlm.agents.engines.process.kill_orphans_of", lambda file: _killed_within(next(waits), file)
    )
    engine = make(*tree(tmp_path))
    await engine.start()
    pids = await asyncio.to_thread(read_tree, tmp_path)
    os.kill(read_state(states)["guard"], signal.SIGKILL)
    await asyncio.wait_for(engine.exited, WAIT_S)
    assert gone(pids)


def _killed_within(seconds: float, state_file: Path) -> list[int]:
    if not seconds:
        raise OrphanError("processes of a former engine did not end")
    return kill_orphans_of(state_file)


def test_the_next_agent_sweeps_what_two_kills_left(
    agent: subprocess.Popen[str], tmp_path: Path, states: Path
) -> None:
    pids = read_tree(tmp_path)
    agent.send_signal(signal.SIGSTOP)  # so that it cannot do it itself
    os.kill(read_state(states)["guard"], signal.SIGKILL)
    agent.kill()
    agent.wait()
    wait_for(lambda: start_ticks(pids["main"]) is None)
    orphans = {pids[name] for name in ("near", "bare", "away", "far")}
    assert orphans <= set(process_ids())
    assert set(kill_orphans(states)) == orphans
    assert gone(pids)
    assert state_files(states) == []


async def test_a_sweep_leaves_engines_with_a_live_guard_alone(
    make: Any, tmp_path: Path, states: Path
) -> None:
    engine = make(*tree(tmp_path))
    await engine.start()
    pids = await asyncio.to_thread(read_tree, tmp_path)
    assert await asyncio.to_thread(kill_orphans, states) == []
    assert not engine.exited.done()
    assert all(start_ticks(pid) is not None for pid in pids.values())
    assert len(state_files(states)) == 1


@pytest.mark.parametrize("lie", ["another process has its id", "another boot", "not a state file"])
def test_a_sweep_kills_no_stranger(states: Path, lie: str) -> None:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True, env={}) as stranger:
        started = wait_for(lambda: start_ticks(stranger.pid))
        state = {
            "boot_id": "another" if lie == "another boot" else boot_id(),
            "marker": "m",
            "guard": stranger.pid,
            "guard_start": started - 1,
            "engine": stranger.pid,
            "engine_start": started - (lie == "another process has its id"),
        }
        file = states / "old.json"
        file.write_text("nonsense" if lie == "not a state file" else json.dumps(state))
        assert kill_orphans(states) == []
        assert stranger.poll() is None
        assert file.exists() == (lie == "not a state file")
        stranger.kill()


def test_a_process_is_known_by_its_marker_in_whatever_session() -> None:
    state = {"marker": "abc", "engine": 2**22 + 1, "engine_start": 0}
    marked = {MARKER_VARIABLE: "abc"}
    with (
        subprocess.Popen(["sleep", "1000"], start_new_session=True, env=marked) as ours,
        subprocess.Popen(["sleep", "1000"], env={MARKER_VARIABLE: "abcd"}) as other,
    ):
        wait_for(lambda: find_orphans(state) == [ours.pid])
        assert find_orphans({**state, "engine_start": 2**60}) == []
        ours.kill()
        other.kill()


async def test_wait_ready_returns_when_the_engine_answers(make: Any, tmp_path: Path) -> None:
    engine = make(*tree(tmp_path))
    await engine.start()

    async def probe() -> bool:
        return (tmp_path / "tree.json").exists()

    await engine.wait_ready(probe, timeout_s=WAIT_S)
    assert (tmp_path / "tree.json").exists()


async def never() -> bool:
    return False


async def test_wait_ready_tells_the_end_of_the_log_of_an_engine_that_ended(make: Any) -> None:
    engine = make(sys.executable, "-c", "import sys; print('out of memory'); sys.exit(7)")
    await engine.start()
    with pytest.raises(EngineUnavailableError, match=r"(?s)ended with code 7.*out of memory"):
        await engine.wait_ready(never, timeout_s=WAIT_S)


async def test_wait_ready_gives_up_in_time(make: Any) -> None:
    engine = make("sleep", "1000")
    await engine.start()
    with pytest.raises(EngineUnavailableError, match="not ready after 0 s"):
        await engine.wait_ready(never, timeout_s=0.2)
    assert not engine.exited.done()


async def test_a_program_that_does_not_exist_is_named(make: Any) -> None:
    engine = make("/no/such/program")
    await engine.start()
    end = await asyncio.wait_for(engine.exited, WAIT_S)
    assert end.return_code == 127
    assert "cannot run /no/such/program: No such file" in end.log_tail


async def test_variables_are_added_and_standard_input_is_empty(make: Any) -> None:
    engine = make(
        sys.executable, "-c", "import os, sys; print(os.environ['A'], repr(sys.stdin.read()))", A="42"
    )
    await engine.start()
    end = await asyncio.wait_for(engine.exited, WAIT_S)
    assert "42 ''" in end.log_tail


async def test_an_engine_is_started_once_and_stopped_only_if_started(make: Any) -> None:
    engine = make("sleep", "1000")
    with pytest.raises(RuntimeError, match="not started"):
        await engine.stop(1)
    await engine.start()
    with pytest.raises(RuntimeError, match="started already"):
        await engine.start()
    first = await engine.stop(WAIT_S)
    assert await engine.stop(WAIT_S) == first


async def test_an_engine_gets_no_secret_of_the_deployment(
    make: Callable[..., EngineProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard between agent and engine has them neither; what is meant for engines arrives."""
    secrets = ("QLM_BROKER", "QLM_STORE", "QLM_ANYTHING", "RAY_AUTH_TOKEN", "REPORTS_SECRET")
    for name in (*secrets, "HF_TOKEN"):
        monkeypatch.setenv(name, f"secret of {name}")
    guard = "open(f'/proc/{os.getppid()}/environ').read()"
    dump = f"import json, os; print(json.dumps([dict(os.environ), {guard}]))"
    engine = make(sys.executable, "-c", dump, withheld=("REPORTS_SECRET", "NOT_SET"), QLM_MEANT="configured")
    await engine.start()
    end = await asyncio.wait_for(asyncio.shield(engine.exited), WAIT_S)
    own, of_the_guard = json.loads((tmp_path / "log").read_text())
    assert (own["HF_TOKEN"], own["QLM_MEANT"], end.return_code) == ("secret of HF_TOKEN", "configured", 0)
    assert {name for name in own if name.startswith("QLM_")} == {"QLM_MEANT", MARKER_VARIABLE}
    assert not own.keys() & {"RAY_AUTH_TOKEN", "REPORTS_SECRET"}
    assert not {f"secret of {name}" for name in secrets} & set(re.findall("secret of [A-Z_]+", of_the_guard))
