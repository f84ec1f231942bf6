"""`qlm simulate`: simulate a scenario."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qlm.cli.commands.options import errors_in_one_line
from qlm.cli.commands.simulation_options import simulates

if TYPE_CHECKING:
    from qlm.simulator.policies import Policy


@click.command("simulate")
@simulates
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for requests.csv, idle.csv and summary.json."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def simulate_command(
    scenario: Path, policy: "Policy", seed: int, out: Path | None, load: float, plots: bool, as_json: bool
) -> None:
    """Simulate the scenario in a YAML file: production decisions in virtual time.

    docs/scenarios.md describes the file, and docs/simulator.md the simulation.
    """
    # Imported here: simulator and tables take longer than the help.
    from qlm.cli.scenario.simulating import simulate_file

    with errors_in_one_line():
        simulate_file(scenario, policy, seed, out, load, plots, as_json)
