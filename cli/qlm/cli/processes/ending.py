"""The end of a process whose threads may be blocked: a limited wait for them, and its own exit status.

Python waits for threads without limit: asyncio for those of the event loop (before Python 3.12),
`concurrent.futures` and `threading` for all others when the interpreter ends. A call on a hung file system or
to a Ray whose head is away would keep the process for ever.
"""

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor, thread
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import uvloop

from qlm.domain.shell.tasks import run_to_end

THREADS_S: Final = 3.0
"""Time for threads to end: those of the event loop once its tasks have ended, then those of the process."""

EXIT_S: Final = 10.0
"""Time for functions that run at the exit of the interpreter, once all threads have ended."""

_SAY_S: Final = 1.0
"""Time to write the last log line: what blocks may be the log itself."""

_POLL_S: Final = 0.1

_PLUMBING: Final = frozenset({threading.__file__, thread.__file__})
_WAITS_FOR_WORK: Final = (thread.__file__, "_worker")

log = logging.getLogger("qlm.cli")


def run_process(work: Coroutine[Any, Any, None]) -> None:
    """Run the main coroutine of a process as `uvloop.run` does, and do not wait for blocked threads."""
    uvloop.run(_run(work))


@contextmanager
def limited_end() -> Iterator[None]:
    """Let the process end with its last lines, which are inside, and with their exit status.

    If threads are blocked for longer than `THREADS_S` after that, they are logged and left.
    """
    status = 1
    try:
        yield
        status = 0
    except SystemExit as end:
        status = _status(end)
        raise
    finally:
        threading.Thread(target=_leave, args=(status,), name="qlm-end", daemon=True).start()


class _LoopThreads(ThreadPoolExecutor):
    """Default executor of the event loop, whose shutdown waits for at most `THREADS_S`."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        end_s = time.monotonic() + (THREADS_S if wait else 0.0)
        for each in tuple(self._threads):
            each.join(max(0.0, end_s - time.monotonic()))


async def _run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.get_running_loop().set_default_executor(_LoopThreads(thread_name_prefix="qlm"))
    await run_to_end(work, exit_at_once)


def exit_at_once() -> None:
    """Exit as failed, in spite of tasks that do not end; engines end with their guards."""
    _exit(1, _blocked())


def _status(end: SystemExit) -> int:
    if end.code is None:
        return 0
    return end.code if isinstance(end.code, int) else 1


def _leave(status: int) -> None:
    # A daemon thread: if all others end, so does the interpreter, and this thread with it.
    time.sleep(THREADS_S)
    give_up_s = time.monotonic() + EXIT_S
    while not (blocked := _blocked()) and time.monotonic() < give_up_s:
        time.sleep(_POLL_S)
    _exit(status, blocked or _blocked(threading.main_thread()))


def _exit(status: int, blocked: list[str]) -> None:
    saying = threading.Thread(target=_say, args=(blocked,), daemon=True)
    saying.start()
    saying.join(_SAY_S)
    os._exit(status)


def _say(blocked: list[str]) -> None:
    if blocked:
        log.error("the process ends although threads are blocked: %s", ", ".join(blocked))
    logging.shutdown()
    sys.stdout.flush()


def _blocked(*threads: threading.Thread) -> list[str]:
    """Return threads, by default those that the main one waits for, with the functions that they execute."""
    frames, main = sys._current_frames(), threading.main_thread()
    return [
        f"{each.name} ({code.co_qualname} in {Path(code.co_filename).name})"
        for each in threads
        or [each for each in threading.enumerate() if not each.daemon and each is not main]
        if (code := _executed(frames.get(each.ident or 0))) is not None
    ]


def _executed(frame: FrameType | None) -> CodeType | None:
    """Return the function that a thread executes; None if it has ended, or waits for work."""
    calls = [each.f_code for each, _ in traceback.walk_stack(frame)] if frame else []
    if not calls or (calls[0].co_filename, calls[0].co_name) == _WAITS_FOR_WORK:
        return None
    return next((each for each in reversed(calls) if each.co_filename not in _PLUMBING), calls[0])
