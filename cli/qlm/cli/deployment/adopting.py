"""Making one deployment of two servers of different ones, for `qlm adopt`."""

import asyncio
import logging
from pathlib import Path

import click

from qlm.cli.commands.options import errors_in_one_line
from qlm.cli.config.settings import Config
from qlm.cli.deployment.membership import join
from qlm.cli.runtime.backends import open_servers
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.logs import log_to_stderr
from qlm.cli.runtime.wiring import new_deployment_id
from qlm.cli.starting import cluster_config


def adopt(config_file: Path) -> None:
    """Make the RabbitMQ and the Redis of a configuration one deployment."""
    log_to_stderr(logging.WARNING)
    with errors_in_one_line():
        config = cluster_config(config_file)
    with errors_in_one_line(code=1):
        click.echo(asyncio.run(_adopt(config)))


async def _adopt(config: Config) -> str:
    async with open_servers(config, SystemClock()) as servers:
        id = await join(servers, new_deployment_id, adopts=True)
        broker, store = servers.addresses
        return f"RabbitMQ at {broker} and Redis at {store} are of the deployment {id}"
