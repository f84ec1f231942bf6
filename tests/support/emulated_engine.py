"""The command line of an emulated engine that runs on its own, for agents to attach to."""

import sys


def engine_command(port: int, model: str, *, seqs_max: int, more: tuple[str, ...] = ()) -> list[str]:
    """Write the command line of a mistral-7b on an A100, up at once.

    Args:
        port: Where it listens, on loopback.
        model: The name clients use.
        seqs_max: Requests in its batch at most.
        more: Further arguments.
    """
    options = f"--port {port} --model mistral-7b --accelerator A100 --served-model-name {model}"
    sizes = f"--max-num-seqs {seqs_max} --max-model-len 4096 --no-cold-start"
    return [sys.executable, "-m", "qlm.simulator.emulation.command", *f"{options} {sizes}".split(), *more]
