"""The table of API keys."""

from typing import Any

from qlm.cli.inspect.layout import Table
from qlm.cli.inspect.render import ago, table


def keys_table(data: dict[str, Any]) -> Table:
    """Lay out API keys."""
    rows = (
        (
            each["id"],
            each["tenant"],
            ", ".join(each["scopes"]),
            ago(each["created_s"]),
            "never" if each["expires_s"] is None else ago(each["expires_s"]),
        )
        for each in data["keys"]
    )
    return table("API keys", ("id", "tenant", "scopes", "created", "expires"), rows)
