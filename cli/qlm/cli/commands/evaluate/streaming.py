"""`qlm evaluate streaming`: simulate figures of the papers on streaming experience."""

from pathlib import Path
from typing import Any

import click

from qlm.cli.commands.options import SEED
from qlm.cli.figures.names import FIGURE_NAMES


@click.command("streaming")
@click.argument("figures", nargs=-1, type=click.Choice(FIGURE_NAMES), metavar="[FIGURE]...")
@click.option(
    "--seed",
    "seeds",
    type=SEED,
    multiple=True,
    default=(1,),
    show_default=True,
    help="Seed of all randomness; may be repeated.",
)
@click.option("--requests", type=click.IntRange(min=1), help="Only the first N requests: a quick look.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for FIGURE.csv.")
@click.option("--plots", is_flag=True, help="Also draw FIGURE.png into the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def streaming_command(**options: Any) -> None:
    """Simulate figures of the papers on streaming experience; all if none is named.

    It prints each paper's claim beside the same figure here. docs/streaming-figures.md describes the figures
    and what they cannot show.
    """
    # Imported here: the simulator takes longer than the help.
    from qlm.cli.commands.evaluate.figures import simulate_figures

    simulate_figures(**options)
