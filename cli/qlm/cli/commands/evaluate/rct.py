"""`qlm evaluate rct`: compare forecasts of completion times with simulated outcomes."""

from pathlib import Path
from typing import Any, Final

import click

from qlm.cli.commands.simulation_options import simulates

FORECASTS: Final = 4000
"""Requests that are forecast by default; each costs about a millisecond."""


@click.command("rct")
@simulates
@click.option(
    "--every",
    type=click.IntRange(min=1),
    help=f"Forecast every N-th request; without it, about {FORECASTS} of them.",
)
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Leave out the first N requests.")
@click.option("--queued", is_flag=True, help="Leave out requests that found a free batch slot.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for accuracy.json.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rct_command(**options: Any) -> None:
    """Forecast requests of a simulated SCENARIO as they arrive, and compare with the outcome.

    A forecast uses what production would know at that time. docs/estimator.md describes the method and
    the columns.
    """
    # Imported here: simulator and estimator take longer than the help.
    from qlm.cli.commands.evaluate.forecasting import evaluate_forecasts

    evaluate_forecasts(about=FORECASTS, **options)
