"""Write the reference pages, and the documents of the API, from the code they describe: `make reference`.

A further page is a function that returns its text, and a line in PAGES.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from qlm.gateway.http.document.about import CLIENTS, OPERATORS
from scripts.api_document.document import document_text
from scripts.reference_pages.agent_lifecycle import agent_lifecycle_page
from scripts.reference_pages.cli import cli_page
from scripts.reference_pages.configuration import configuration_page
from scripts.reference_pages.http import http_page
from scripts.reference_pages.http_admin import http_admin_page
from scripts.reference_pages.profile_accuracy import profile_accuracy_page
from scripts.reference_pages.request_fields import request_fields_page
from scripts.reference_pages.scenarios import scenarios_page

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "docs/reference"

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "agent-lifecycle.md": agent_lifecycle_page,
    "configuration.md": configuration_page,
    "cli.md": cli_page,
    "http.md": http_page,
    "http-admin.md": http_admin_page,
    "profile-accuracy.md": profile_accuracy_page,
    "request-fields.md": request_fields_page,
    "scenarios.md": scenarios_page,
}
"""Each page by the name of its file."""

DOCUMENTS: Final[Mapping[str, Callable[[], str]]] = {
    CLIENTS: partial(document_text, of_operators=False),
    OPERATORS: partial(document_text, of_operators=True),
}
"""The documents of the API, which the gateway serves, by the names of their files."""

DOCUMENTS_FOLDER: Final = ROOT / "gateway/qlm/gateway/http/document"


def main() -> int:
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), "utf-8")
        print(f"written: docs/reference/{name}")
    for name, text in DOCUMENTS.items():
        (DOCUMENTS_FOLDER / name).write_text(text(), "utf-8")
        print(f"written: {(DOCUMENTS_FOLDER / name).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
