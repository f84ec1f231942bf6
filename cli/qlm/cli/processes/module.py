"""Python modules that run as programs beside this process."""

import asyncio
import sys
from collections.abc import Mapping
from subprocess import DEVNULL, PIPE


async def start_module(
    name: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    reads: bool = False,
    writes: bool = False,
) -> asyncio.subprocess.Process:
    """Start an installed module; what it writes to standard error can be read.

    It has a session of its own: Ctrl-C in a terminal is for this process, which ends what it has started.

    Args:
        name: The module.
        arguments: Its arguments.
        env: Its environment; by default, that of this process.
        reads: It reads from standard input.
        writes: It writes to standard output.

    Raises:
        OSError: It cannot be started.
    """
    return await asyncio.create_subprocess_exec(
        # Without -P, modules of the current folder would hide installed ones.
        *(sys.executable, "-P", "-m", name, *arguments),
        stdin=PIPE if reads else None,
        stdout=PIPE if writes else DEVNULL,
        stderr=PIPE,
        env=env,
        start_new_session=True,
    )
