"""Two repairs for a vLLM server on a CPU under test; put this folder on its PYTHONPATH, nothing else's.

Python imports this module by its name at start, in the server and in each of its worker processes.
"""

import contextlib
import ctypes
import os
import platform
import sys
import time

# From Linux's arch/x86/include/uapi/asm/prctl.h and the list of extended CPU states (XSAVE).
SYS_ARCH_PRCTL = 158
ARCH_REQ_XCOMP_PERM = 0x1023
XFEATURE_XTILEDATA = 18

YIELD_S = 50e-6


def ask_for_amx_tiles() -> None:
    """Ask the kernel for the AMX tile registers, which a process may not touch unasked.

    vLLM's bfloat16 attention uses them on CPUs that have them, but relies on an earlier large matrix product
    to have asked. When the first prompt is shorter than five tokens there was none, and the worker dies of an
    illegal instruction. On a CPU or kernel without AMX the call fails and changes nothing.
    """
    if sys.platform == "linux" and platform.machine() == "x86_64":
        ctypes.CDLL(None).syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)


def sleep_instead_of_spinning() -> None:
    """Make the engine's busy wait give up the core.

    vLLM waits for shared memory in a loop around `os.sched_yield`. With a core for each process that is the
    fastest way; on two cores it starves the threads that carry tokens to the client: half of the streams
    stalled for more than 100 ms, and aborts came too late. The sleep costs at most half a millisecond a step.
    """
    os.sched_yield = lambda: time.sleep(YIELD_S)


with contextlib.suppress(OSError, AttributeError):
    ask_for_amx_tiles()
sleep_instead_of_spinning()
