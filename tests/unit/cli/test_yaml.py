"""YAML of settings: merge keys, and keys that stand twice."""

from pathlib import Path

import pytest

from qlm.cli.config.errors import ConfigError
from qlm.cli.config.yaml import read_mapping


def read(folder: Path, text: str) -> dict[str, object]:
    path = folder / "file.yaml"
    path.write_text(text, "utf-8")
    return read_mapping(path, "a")


def test_merge_keys_take_over_what_a_mapping_does_not_have(tmp_path: Path) -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, y: 3}\nc: {<<: [*b, {z: 5}], x: 4}\n"
    assert read(tmp_path, text) == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 4, "y": 3, "z": 5},
    }


def test_a_mapping_that_is_merged_before_it_is_built_has_no_key_twice(tmp_path: Path) -> None:
    text = "in: {deep: {a: &a {x: 1}, b: &b {<<: *a, x: 2}}}\nc: {<<: *b}\n"
    assert read(tmp_path, text)["c"] == {"x": 2}


@pytest.mark.parametrize(
    "text",
    [
        "a: &a {x: 1}\nb: {<<: *a, y: 1, y: 2}\n",
        "a: {x: 1, x: 2}\n",
        "b: {<<: {x: 1, x: 2}}\n",
        "? [1]\n: 2\n",
    ],
)
def test_keys_that_stand_twice_or_cannot_be_keys_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"file\.yaml: is not YAML: .*(stands twice|unhashable key)"):
        read(tmp_path, text)
