"""Command that makes one deployment of two servers of different ones."""

from pathlib import Path

import click

from qlm.cli.commands.run import CONFIG_PATH


@click.command("adopt")
@click.option("--config", "config_file", type=CONFIG_PATH, required=True, help="Configuration file (YAML).")
def adopt_command(config_file: Path) -> None:
    """Make the RabbitMQ and the Redis of a configuration one deployment.

    Needed when one of them was replaced by one that another deployment of the same name has used: QLM then
    refuses to start. Stop all processes first. Requests in this RabbitMQ are served, results in this Redis
    are given out.
    """
    # Imported here: the clients of both servers take longer than the help.
    from qlm.cli.deployment.adopting import adopt

    adopt(config_file)
