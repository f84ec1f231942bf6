"""Calls of a server of S3-compatible storage: tried again where that helps, each in a bounded time."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from qlm.gateway.files.s3.errors import as_qlm
from qlm.gateway.files.s3.silence import Silence
from qlm.gateway.files.s3.tries import is_silence, pause_s

T = TypeVar("T")


class Calls:
    """Calls by any thread, whose tries have time limits of their own."""

    def __init__(
        self,
        where: str,
        timeout_s: float,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Make no call yet.

        Args:
            where: The bucket with its server, for messages.
            timeout_s: Time limit of a call, seconds: no try begins in its second half.
            clock_s: Returns the time of a steady clock, seconds.
            sleep: Waits for so many seconds.
            draw: Returns a random number from 0 to 1.
        """
        self._where = where
        self._timeout_s = timeout_s
        self._clock_s = clock_s
        self._sleep = sleep
        self._draw = draw
        self._silence = Silence()

    def make(self, call: Callable[[], T]) -> T:
        """Return what a call returns.

        Raises:
            ClientError: The storage answered that it cannot do it.
            StorageUnavailableError: It is away, silent, or cannot be used.
        """
        begun_s, tried = self._clock_s(), 0
        with self._silence.call(self._where):
            while True:
                tried += 1
                try:
                    return self._try(call)
                except (ClientError, BotoCoreError, OSError) as error:
                    passed_s = self._clock_s() - begun_s
                    pause = pause_s(error, tried, passed_s, self._timeout_s, self._draw())
                    if pause is None and isinstance(error, ClientError):
                        raise
                    if pause is None or not self._silence.may_try:
                        raise as_qlm(error, self._where) from error
                self._sleep(pause)

    def _try(self, call: Callable[[], T]) -> T:
        answers = self._silence.answers
        try:
            found = call()
        except Exception as error:
            if is_silence(error):
                self._silence.heard_nothing(answers)
            else:
                self._silence.heard()
            raise
        self._silence.heard()
        return found
