"""A journal that survives the embedded store."""

from pathlib import Path

import pytest

from support.dict_journal import DictJournal


@pytest.fixture
def journal(tmp_path: Path) -> DictJournal:
    """A journal whose token log is in a folder of its own."""
    return DictJournal(tmp_path / "queue")
