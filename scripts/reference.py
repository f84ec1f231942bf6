"""Write the reference pages in docs/reference from the code they describe: `make reference`.

A further page is a function that returns its text, and a line in PAGES.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from scripts.reference_pages.agent_lifecycle import agent_lifecycle_page
from scripts.reference_pages.cli import cli_page
from scripts.reference_pages.configuration import configuration_page
from scripts.reference_pages.http import http_page
from scripts.reference_pages.http_admin import http_admin_page
from scripts.reference_pages.profile_accuracy import profile_accuracy_page

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs/reference"

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "agent-lifecycle.md": agent_lifecycle_page,
    "configuration.md": configuration_page,
    "cli.md": cli_page,
    "http.md": http_page,
    "http-admin.md": http_admin_page,
    "profile-accuracy.md": profile_accuracy_page,
}
"""Each page by the name of its file."""


def main() -> int:
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), "utf-8")
        print(f"written: docs/reference/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
