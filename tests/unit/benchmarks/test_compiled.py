"""Compiled code is reused for equal sources only."""

import ast
from pathlib import Path

import pytest

from benchmarks import compiled


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for part in compiled.PARTS:
        (tmp_path / part / "qlm" / part).mkdir(parents=True)
        (tmp_path / part / "qlm" / part / "__init__.py").write_text('"""A part."""\n')
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    return tmp_path


def test_equal_sources_are_compiled_once(tree: Path) -> None:
    before = compiled.key()
    (tree / "store" / "qlm" / "store" / "__pycache__").mkdir()
    (tree / "store" / "qlm" / "store" / "__pycache__" / "__init__.pyc").write_bytes(b"cached")
    assert compiled.key() == before


@pytest.mark.parametrize("part", compiled.PARTS)
def test_any_edit_is_compiled_anew(tree: Path, part: str) -> None:
    before = compiled.key()
    (tree / part / "qlm" / part / "__init__.py").write_text('"""A part!"""\n')
    edited = compiled.key()
    (tree / part / "qlm" / part / "new.py").write_text("")
    assert len({before, edited, compiled.key()}) == 3


@pytest.mark.parametrize("pattern", compiled.HOT)
def test_each_pattern_of_hot_modules_matches(pattern: str) -> None:
    part, _, inside = pattern.partition("/")
    assert any((compiled.ROOT / part / "qlm" / part).glob(inside)), f"nothing matches {pattern}"


def test_modules_that_cannot_be_compiled_are_left_out() -> None:
    assert ("domain", "qlm/domain/values.py") not in compiled.hot_modules()
    assert ("domain", "qlm/domain/request.py") in compiled.hot_modules()


def test_modules_with_what_mypyc_does_not_support_are_left_out(tree: Path) -> None:
    folder = tree / "domain" / "qlm" / "domain"
    for name, text in (("model", "import pydantic\n"), ("port", "@runtime_checkable\n"), ("plain", "")):
        (folder / f"{name}.py").write_text(text)
    assert compiled.hot_modules() == [("domain", "qlm/domain/plain.py")]


def test_compiled_bases_of_other_classes_are_found(tree: Path) -> None:
    (tree / "domain" / "qlm" / "domain" / "deep.py").write_text("class Deep: ...\nclass Own(Deep): ...\n")
    base = "from qlm.domain.deep import Deep\nclass Base(Deep, Generic[T]): ...\nclass Leaf(Base): ...\n"
    (tree / "store" / "qlm" / "store" / "core").mkdir()
    (tree / "store" / "qlm" / "store" / "core" / "base.py").write_text(base)
    outside = "from qlm.store.core.base import Base as Known\nclass Here(Known[int]): ...\n"
    (tree / "cli" / "qlm" / "cli" / "outside.py").write_text(outside)
    assert compiled.inherited() == {"qlm/store/core/base.py": {"Base"}, "qlm/domain/deep.py": {"Deep"}}


def test_classes_with_other_subclasses_say_so() -> None:
    source = '"""A module."""\n\nimport os\n\n@dataclass\nclass A:\n    pass\n\n\nclass Ab(A):\n    pass\n'
    attribute = "@mypyc_attr(allow_interpreted_subclasses=True)\n"
    expected = source.replace("import os", "from mypy_extensions import mypyc_attr\nimport os")
    assert compiled.with_subclasses(source, {"A"}) == expected.replace(
        "@dataclass\n", f"{attribute}@dataclass\n"
    )
    assert compiled.with_subclasses(source, None) == source


def test_keywords_with_defaults_follow_those_without() -> None:
    """As mypyc wants it."""
    for part, module in compiled.hot_modules():
        tree = ast.parse((compiled.ROOT / part / module).read_text("utf-8"))
        for function in (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)):
            defaults = [each is not None for each in function.args.kw_defaults]
            assert defaults == sorted(defaults), f"{module}:{function.lineno} {function.name}"


def test_values_are_written_out_as_the_dataclasses_they_are() -> None:
    written = compiled.with_values_written_out(
        "from qlm.domain.values import value\n\n@value\nclass A:\n    n: int\n\n"
        "@value(kw_only=False, order=True)\nclass B:\n    n: int\n"
    )
    names: dict[str, type] = {}
    exec(written, {"__name__": "written"}, names)
    one, other = names["B"](1), names["B"](2)
    assert one < other and hash(one) == hash(names["B"](1))
    assert repr(names["A"](n=3)) == "A(n=3)" and not hasattr(names["A"](n=3), "__dict__")
    with pytest.raises(TypeError):
        names["A"](3)
