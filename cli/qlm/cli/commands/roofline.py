"""`qlm roofline`: compute the profile of a model from its configuration and the accelerator's data sheet."""

from pathlib import Path
from typing import Any

import click

from qlm.rct_estimator.profiles.accelerators import ACCELERATORS


@click.command("roofline", epilog=f"Accelerators: {', '.join(each.name for each in ACCELERATORS)}.")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--accelerator", required=True, help="Kind of accelerator, such as A100.")
@click.option(
    "--gpus", type=click.IntRange(1, 64), default=1, show_default=True, help="GPUs one engine spans."
)
@click.option("--name", help="Model name in the profile.  [default: that of the folder of CONFIG]")
@click.option(
    "--context-tokens", type=click.IntRange(2), help="Prompt plus output.  [default: what CONFIG says]"
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write.  [default: none]"
)
@click.option("--force", is_flag=True, help="Overwrite that file.")
def roofline_command(**options: Any) -> None:
    """Compute the profile of an unmeasured model from its config.json.

    CONFIG is a model's config.json (in the format of Hugging Face) or the folder with it. QLM does the same
    by itself for models without a profile; the file shows the result, with the uncertainty of each number.
    """
    # Imported here: profiles take longer than the help.
    from qlm.cli.speed.roofline_file import compute_roofline

    compute_roofline(**options)
