"""Signs of life of gateway workers: one that hangs is found, though its process has not ended.

Silence is counted in turns of the owner, not by its clock: an owner that stood still itself, or a machine
that slept, finds what workers have sent meanwhile before it counts the next turn. While the owner does not
read, because calls of the worker wait for an answer, nothing counts; once answers wait for the worker, it
must take some.
"""

import asyncio
from typing import Final

from qlm.cli.processes.frames import Link
from qlm.domain.shell.tasks import end_tasks

BEAT_S: Final = 1.0
"""Time between two signs of life, and between two looks for them."""

SILENCE_MAX_S: Final = 10.0
"""A worker that serves and sends nothing for this time hangs, and its clients wait for it."""

START_MAX_S: Final = 300.0
"""Time of a worker to begin to serve; it may load tokenizers, in which time it sends nothing."""


class Silence:
    """Looks, one after the other, at which nothing had come from a worker."""

    def __init__(self, looks_max: int, looks_max_starting: int) -> None:
        """Begin with a worker that does not serve yet.

        Args:
            looks_max: Looks in a row without anything from a worker that serves, after which it hangs.
            looks_max_starting: The same for one that does not serve yet.
        """
        self._looks_max = looks_max
        self._looks_max_starting = looks_max_starting
        self._signs = (0, 0)
        self._silent = 0

    def look(self, signs: tuple[int, int], *, serves: bool, expected: bool) -> bool:
        """Look at a worker; return whether it hangs.

        Args:
            signs: Counts of which one grows while it works.
            serves: It has begun to serve.
            expected: A sign of it is due: its owner does not keep it waiting.
        """
        if signs != self._signs or not expected:
            self._signs, self._silent = signs, 0
        else:
            self._silent += 1
        return self._silent >= (self._looks_max if serves else self._looks_max_starting)


class Watch:
    """Watch of one worker.

    Attributes:
        serves: The worker has begun to serve.
    """

    def __init__(self, beat_s: float, silence_max_s: float, start_max_s: float) -> None:
        """Begin when the worker is started; times as `BEAT_S`, `SILENCE_MAX_S`, `START_MAX_S`."""
        self.serves = False
        self._beat_s = beat_s
        self._silence = Silence(round(silence_max_s / beat_s), round(start_max_s / beat_s))

    async def hangs(self, link: Link) -> None:
        """Return once the worker hangs."""
        while True:
            await asyncio.sleep(self._beat_s)
            # Unread, with answers to take, it works as long as it takes them.
            expected = link.reading or link.behind
            if self._silence.look(link.signs, serves=self.serves, expected=expected):
                return


async def ended_or_hangs(process: asyncio.subprocess.Process, watch: Watch, link: Link) -> bool:
    """Wait for a worker to end or to hang; return whether it hangs."""
    ending, hanging = asyncio.create_task(process.wait()), asyncio.create_task(watch.hangs(link))
    try:
        await asyncio.wait((ending, hanging), return_when=asyncio.FIRST_COMPLETED)
        return not ending.done()
    finally:
        await end_tasks([ending, hanging])


async def beat(link: Link) -> None:
    """Send signs of life until cancelled."""
    while True:
        link.send("beat")
        await asyncio.sleep(BEAT_S)
