"""A stand-in for an agent, to be killed: runs one engine, says `started`, and waits for its end.

python engine_agent.py STATE_FOLDER LOG_FILE COMMAND...
"""

import asyncio
import sys
from pathlib import Path

from qlm.agents.engines.process import EngineProcess


async def main(state_folder: str, log_file: str, *command: str) -> None:
    engine = EngineProcess(
        "test/engine", command, env={}, log_file=Path(log_file), state_folder=Path(state_folder)
    )
    await engine.start()
    print("started", flush=True)
    await engine.exited


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
