"""Computing the profile of a model and writing it, for `qlm roofline`."""

from pathlib import Path

import click

from qlm.cli.commands.options import errors_in_one_line
from qlm.cli.scenario.output import make_folder, write_whole
from qlm.cli.speed.model_config import read_architecture
from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.accelerators import accelerator_of
from qlm.rct_estimator.profiles.file import profile_text
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.roofline.architecture import Architecture
from qlm.rct_estimator.roofline.profile import roofline_profile

_PROMPT_TOKENS = 1024
_BATCHES = (1, 8, 32, 64)


def compute_roofline(
    config: Path,
    accelerator: str,
    gpus: int,
    name: str | None,
    context_tokens: int | None,
    out: Path | None,
    force: bool,
) -> None:
    """Compute the profile of a model, print it, and write it to `out` if that is given."""
    with errors_in_one_line():
        if out is not None and out.exists() and not force:
            raise InvalidValueError("--out", str(out), "a file that does not exist, or --force")
        architecture = read_architecture(config)
        made = roofline_profile(
            architecture,
            model=name or _name(config),
            accelerator=accelerator_of(accelerator),
            name=accelerator,
            gpus=gpus,
            context_tokens=context_tokens,
        )
        _show(architecture, made)
        if out is not None:
            make_folder(out.parent)
            write_whole(out, profile_text(made).encode())
            click.echo(f"written to {out}")


def _name(config: Path) -> str:
    folder = config if config.is_dir() else config.parent
    return folder.resolve().name or "model"


def _show(architecture: Architecture, made: Profile) -> None:
    within = made.sources["linear_ms"].uncertainty or 0.0
    decodes = ", ".join(f"{made.decode_ms(batch, _PROMPT_TOKENS):.3g} ms of {batch}" for batch in _BATCHES)
    click.echo(
        f"{made.model} on {made.gpus} x {made.accelerator}: "
        f"{architecture.parameters / 1e9:.4g} billion parameters, "
        f"{made.weights_bytes / 1e9:.4g} GB of weights"
    )
    click.echo(f"KV       {made.kv_bytes_per_token} bytes per token, room for {made.kv_tokens} tokens")
    click.echo(f"prefill  {made.prefill_ms(1, _PROMPT_TOKENS):.3g} ms for {_PROMPT_TOKENS} tokens")
    click.echo(f"decode   {decodes} sequences of {_PROMPT_TOKENS} tokens")
    click.echo(f"batch    {made.seqs_max} sequences and {made.batched_tokens_max} tokens at most")
    click.echo(
        f"swap     {made.swap_warm_s:.3g} s warm, {made.swap_reload_s:.3g} s from storage, "
        f"{made.swap_cold_s:.3g} s cold"
    )
    click.echo(f"iterations are within {within:.0%}; `qlm profile` measures them")
