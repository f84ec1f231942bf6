"""`qlm init`: write a first configuration file."""

from pathlib import Path
from typing import Any, Final

import click

_PRINTED: Final = Path("-")


@click.command("init")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path), required=False)
@click.option(
    "--model",
    "models",
    multiple=True,
    help="NAME=FOLDER for weights that vLLM serves, or NAME for an emulated model; may be repeated.",
)
@click.option(
    "--accelerator",
    "accelerators",
    multiple=True,
    help="Kind of an instance, such as A100; may be repeated.  "
    "[default: the GPUs of this machine, or emulated ones]",
)
@click.option(
    "--slo",
    default="deadline_ms=60000",
    show_default=True,
    help="Objective of requests that name none, as KEY=NUMBER,...; batch for none.",
)
@click.option("--force", is_flag=True, help="Overwrite that file.")
def init_command(file: Path | None, **options: Any) -> None:
    """Write a first configuration into FILE, or print it.

    Without weights, models and accelerators are emulated. With weights there is an instance for each GPU that
    nvidia-smi lists; without a GPU, name kinds with --accelerator. The FILE `-` is standard output, too.
    """
    # Imported here: the configuration takes longer than the help.
    from qlm.cli.starter.first_file import write_first_file

    write_first_file(None if file == _PRINTED else file, **options)
