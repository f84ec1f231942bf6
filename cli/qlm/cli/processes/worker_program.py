"""Gateway worker as a program: `python -m qlm.cli.processes.worker_program LINK LISTENER`.

Both are inherited descriptors. It ends when its owner says so, on SIGTERM, or at once when the owner has
ended, even if it hangs.
"""

import ctypes
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Serve until stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the owner gets it, too, and says when
    _end_with_owner()
    # Imported here: it takes a second, in which the owner may end, and Ctrl-C may be pressed.
    from qlm.cli.processes.worker import run

    run(*map(int, sys.argv[1:]))


def _end_with_owner() -> None:
    """Have the system kill this process when its owner ends: one that hangs would keep the port.

    An owner that has ended before is found by the end of the link, which is not open then.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
