"""`qlm evaluate`: measure the accuracy of completion-time estimates and of the engine model."""

from typing import Final

import click

from qlm.cli.lazy import LazyGroup

_HELP: Final = {
    "evaluate.streaming": {
        "streaming": "Simulate figures of the papers on streaming experience; all if none is named.",
    },
    "evaluate.fidelity": {
        "fidelity": "Replay the log of an engine with the engine model, and print the errors.",
    },
    "evaluate.rct": {
        "rct": "Forecast requests of a simulated SCENARIO as they arrive, and compare with the outcome.",
    },
}


@click.group("evaluate", cls=LazyGroup, listed=_HELP)
def evaluate_command() -> None:
    """Measure the accuracy of estimates and engine model, or simulate figures of papers."""
