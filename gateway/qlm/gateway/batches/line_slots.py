"""Slots of the lines of one batch: taken in turns with other batches, none while it is paused or stops."""

import asyncio

from qlm.domain.shell.tasks import end_tasks


class LineSlots:
    """The slots that one batch takes of those of its gateway.

    Attributes:
        stopped: Set once the batch stops; it takes none after that.
        going_on: Set while it is not paused; it takes none without.
        wanted: It waits for one.
        why_stopped: Why it stops; empty before.
    """

    def __init__(self, slots: asyncio.Semaphore) -> None:
        """Take none yet."""
        self._slots = slots
        self.stopped = asyncio.Event()
        self.going_on = asyncio.Event()
        self.going_on.set()
        self.wanted = False
        self.why_stopped = ""

    @property
    def may_begin(self) -> bool:
        """Whether further requests may go into the queue: it is not paused, and does not stop."""
        return self.going_on.is_set() and not self.stopped.is_set()

    def stop(self, why: str) -> None:
        """Take none from now on."""
        self.why_stopped = why
        self.stopped.set()

    async def take(self) -> bool:
        """Take a slot, or return False if the batch stops before; with False or an error, none is taken."""
        stopped = asyncio.create_task(self.stopped.wait())
        slot = asyncio.create_task(self._slot())
        begins, self.wanted = False, True
        try:
            try:
                await asyncio.wait((stopped, slot), return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end_tasks([stopped, slot])
            begins = not self.stopped.is_set()
        finally:
            self.wanted = False
            if not begins and slot.done() and not slot.cancelled():
                self.release()
        return begins

    def release(self) -> None:
        """Give one back."""
        self._slots.release()

    async def _slot(self) -> None:
        while True:
            await self.going_on.wait()
            await self._slots.acquire()
            if self.going_on.is_set():
                return
            self._slots.release()
