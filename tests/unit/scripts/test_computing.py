"""Which tests may run slowly beside others."""

import pytest

from support.computing import FOLDERS, computes_only


def test_the_folders_are_there() -> None:
    assert [folder for folder in FOLDERS if not folder.is_dir()] == []


@pytest.mark.parametrize("name", ["time", "socket", "subprocess", "free_port", "ServerProcess"])
def test_a_file_with_a_clock_or_a_process_is_not_among_them(name: str) -> None:
    file = FOLDERS[0] / "exact" / "test_any.py"
    assert computes_only(file, {"pytest", "random"})
    assert not computes_only(file, {"pytest", "random", name})


def test_a_file_of_another_folder_is_not_among_them() -> None:
    assert not computes_only(FOLDERS[0].parent / "gateway" / "test_any.py", {"pytest"})
