"""Follow one preemption through the agent: `PYTHONPATH=tests python -m scripts.preemption_path`.

An agent with a full batch reads a virtual queue with a more urgent group in front. It aborts a running
request, waits for the end of its stream, logs its tokens, and reports to the store that it is parked. The
script prints two sets of files of the agents:

- the path: files on the call stack whenever the life cycle changes the request or an action about it is made,
  and the shell's files that carry the report to the store; at most `FILES_MAX`;
- beside the path: other files with functions that get the request as an argument (indexes, counters, timers).

It also checks that only `core/lifecycle.py` assigns phase, disposition and outcome of a request. Exit status
is 1 if the path has too many files, or if another file assigns one of these.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

from qlm.agents.core.events import GenerationEnded, Progress
from qlm.agents.core.request import TrackedRequest
from qlm.domain.actions import Abort, Append, ReportParked
from support.agent_bench import Bench, group_of
from support.requests import a_request

ROOT: Final = Path(__file__).resolve().parents[1]
AGENTS: Final = ROOT / "agents/qlm/agents"
FILES_MAX: Final = 10

LIFECYCLE: Final = "core/lifecycle.py"
DECIDED: Final = frozenset({"phase", "disposition", "outcome", "why"})
"""Attributes of a request that only the life cycle assigns."""


SHELL: Final = ("shell/runner.py", "shell/side_effects.py", "core/side_effects.py")
"""From the action `ReportParked` to the call of the store."""


class Trail:
    """Records the functions of the agents that handle one request.

    Args:
        request: Id of the request to follow.

    Attributes:
        path: File and function of those that change it or make an action about it, and of their callers.
        beside: The others that get it as an argument.
    """

    def __init__(self, request: str) -> None:
        self.path: dict[tuple[str, str], None] = {}
        self.beside: dict[tuple[str, str], None] = {}
        self._request = request

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """Process an event of `sys.setprofile`."""
        file = self._file(frame)
        if file is None:
            return
        if event == "call" and self._handles(frame):
            if file == LIFECYCLE:
                self._note_stack(frame)
            else:
                self.beside.setdefault((file, frame.f_code.co_qualname))
        elif event == "return" and isinstance(value, list) and any(map(self._concerns, value)):
            self._note_stack(frame)

    def _note_stack(self, frame: FrameType | None) -> None:
        while frame is not None:
            if (file := self._file(frame)) is not None:
                self.path.setdefault((file, frame.f_code.co_qualname))
            frame = frame.f_back

    def _concerns(self, action: object) -> bool:
        match action:
            case Abort(call_ids=ids):
                return any(id.startswith(self._request) for id in ids)
            case Append(entries=entries):
                return any(entry.id == self._request for entry in entries)
            case ReportParked(id=id):
                return id == self._request
        return False

    def _handles(self, frame: FrameType) -> bool:
        arguments = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
        values = (frame.f_locals.get(name) for name in arguments)
        return any(isinstance(each, TrackedRequest) and each.id == self._request for each in values)

    def _file(self, frame: FrameType) -> str | None:
        path = Path(frame.f_code.co_filename)
        return str(path.relative_to(AGENTS)) if path.is_relative_to(AGENTS) else None


def _measure_pace(bench: Bench) -> None:
    """Run a request of ten tokens in a second: without a pace, an agent never preempts."""
    first = bench.start(a_request("first"), name="first")
    bench.later(1.0)
    bench.send(Progress(chunks=((first.call.call_id, tuple(range(10))),)))
    bench.send(GenerationEnded(call_id=first.call.call_id, finish="stop"))
    bench.store_appends()


def preempt() -> Trail:
    """Have an agent preempt a request; return the functions on the way."""
    bench = Bench(seqs_max=1)
    _measure_pace(bench)
    victim = bench.start(a_request("victim", max_tokens=1000))
    bench.send(Progress(chunks=((victim.call.call_id, (1, 2, 3)),)))
    bench.store_appends()
    trail = Trail("victim")
    sys.setprofile(trail)
    try:
        bench.queue(group_of(a_request("urgent", deadline_ms=2000, arrival_ns=bench.now_ns), name="urgent"))
        (abort,) = bench.take(Abort)
        assert abort.call_ids == (victim.call.call_id,)
        bench.send(Progress(chunks=((victim.call.call_id, (4,)),)))
        bench.send(GenerationEnded(call_id=victim.call.call_id, finish="abort"))
        bench.later(0.05)
        while not (notes := bench.take(ReportParked)):
            bench.answer_append()
        assert [note.id for note in notes] == ["victim"]
    finally:
        sys.setprofile(None)
    return trail


def assignments() -> Iterator[str]:
    """Yield the places outside of the life cycle that assign what only it decides."""
    for path in sorted((AGENTS / "core").rglob("*.py")):
        if str(path.relative_to(AGENTS)) == LIFECYCLE:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                continue
            for target in targets:
                for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if not isinstance(each, ast.Attribute) or each.attr not in DECIDED:
                        continue
                    if getattr(each.value, "id", "") != "self":
                        yield f"{path.relative_to(ROOT)}:{node.lineno} assigns {ast.unparse(each)}"


def _by_file(functions: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for file, function in functions:
        files.setdefault(file, []).append(function)
    return files


def main() -> int:
    """Print the path of one preemption, and assignments outside of the life cycle."""
    trail = preempt()
    path = _by_file(trail.path)
    beside = {file: names for file, names in _by_file(trail.beside).items() if file not in path}
    for file, functions in path.items():
        print(f"{file}: {', '.join(functions)}")
    files = [*path, *(file for file in SHELL if file not in path)]
    print(f"{len(files)} files on the path, with {', '.join(SHELL)}; at most {FILES_MAX}")
    print(f"{len(beside)} files beside it: {', '.join(beside)}")
    stray = list(assignments())
    decided = ", ".join(sorted(DECIDED))
    print("\n".join([*stray, f"{len(stray)} assignments of {decided} outside of {LIFECYCLE}"]))
    return 1 if len(files) > FILES_MAX or stray else 0


if __name__ == "__main__":
    sys.exit(main())
