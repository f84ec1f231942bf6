"""Endpoints with their secrets, which only the environment and files have."""

import os
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Final

from qlm.cli.config.errors import ConfigError
from qlm.cli.webhooks.section import EndpointConfig, WebhooksConfig
from qlm.domain.shown import shown
from qlm.gateway.webhooks.endpoints import Endpoint, Webhooks
from qlm.gateway.webhooks.limits import WebhookLimits
from qlm.gateway.webhooks.signature import secret_key

SECRET_CHARACTERS_MAX: Final = 4096


def read_webhooks(config: WebhooksConfig, environment: Mapping[str, str] = os.environ) -> Webhooks | None:
    """Return the endpoints with their secrets; None if there are none.

    Raises:
        ConfigError: A secret is missing or wrong; it is not shown.
    """
    if not config.endpoints:
        return None
    limits = {name: getattr(config, name) for name in WebhookLimits.model_fields}
    return Webhooks(
        endpoints=[_endpoint(each, environment) for each in config.endpoints],
        networks=tuple(map(ip_network, config.allowed_networks)),
        limits=WebhookLimits(**limits),
    )


def _endpoint(config: EndpointConfig, environment: Mapping[str, str]) -> Endpoint:
    where, text = _secret(config, environment)
    try:
        secrets = tuple(map(secret_key, text.split()))
    except ValueError as error:
        raise ConfigError(f"{where} {error}") from error
    if not secrets:
        raise ConfigError(f"{where} is empty; expected a secret")
    return Endpoint(
        name=config.name,
        url=config.url,
        secrets=secrets,
        events=frozenset(config.events),
        tenants=None if config.tenants is None else frozenset(config.tenants),
    )


def _secret(config: EndpointConfig, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return where the secret of an endpoint is, in words, and its text."""
    if config.secret_file is None:
        name = config.secret_env or ""
        if name not in environment:
            raise ConfigError(f"{name} is not set; expected the secret of the webhook {config.name}")
        return f"{name} of the environment", environment[name]
    where = f"the secret_file {shown(str(config.secret_file))} of the webhook {config.name}"
    try:
        with config.secret_file.open(encoding="ascii", errors="replace") as file:
            return where, file.read(SECRET_CHARACTERS_MAX)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{where} cannot be read: {why}") from error
