"""`qlm doctor` of a gateway under test."""

from qlm.cli.inspect.admin_client import AdminClient
from qlm.cli.inspect.doctor import examine
from qlm.cli.inspect.finding import Finding


def faults(admin_url: str) -> dict[str, Finding]:
    """Examine a gateway; return what is found bad, by check."""
    return {each.check: each for each in examine(AdminClient(admin_url)) if not each.ok}
