"""The shape of the source tree, as far as no linter can say it."""

import ast
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import qlm

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPONENTS: list[str] = PROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"]

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 350


def source_files() -> Iterator[Path]:
    for component in COMPONENTS:
        yield from (ROOT / component).rglob("*.py")


def test_no_foreign_package_hides_the_namespace() -> None:
    # The PyPI project "qlm" is a stranger's program with a regular package of this name.
    assert getattr(qlm, "__file__", None) is None, f"another package called qlm is installed: {qlm.__file__}"


def test_no_component_claims_the_namespace_root() -> None:
    claims = [component for component in COMPONENTS if (ROOT / component / "qlm/__init__.py").exists()]
    assert claims == [], f"delete {claims}/qlm/__init__.py: it hides the other components"


@pytest.mark.parametrize("component", COMPONENTS)
def test_component_folder_exposes_only_its_own_package(component: str) -> None:
    folder = ROOT / component
    strays = [
        str(path.relative_to(ROOT))
        for path in folder.rglob("*.py")
        if path.relative_to(folder).parts[:2] != ("qlm", component)
    ]
    assert strays == [], f"importable under a top-level name of their own; move them below {component}/qlm/"


@pytest.mark.parametrize("component", COMPONENTS)
def test_component_is_typed_and_imports_from_this_tree(component: str) -> None:
    package = ROOT / component / "qlm" / component
    assert (package / "py.typed").is_file(), "without it, users of the wheel see no types"
    module = import_module(f"qlm.{component}")
    assert module.__file__ == str(package / "__init__.py")


def test_every_component_is_known_to_all_tools() -> None:
    tool = PROJECT["tool"]
    assert tool["hatch"]["build"]["targets"]["wheel"]["packages"] == [f"{name}/qlm" for name in COMPONENTS]
    assert tool["coverage"]["run"]["source"] == COMPONENTS
    assert tool["importlinter"]["root_packages"] == [f"qlm.{name}" for name in COMPONENTS]
    assert [f"$MYPY_CONFIG_FILE_DIR/{name}" for name in COMPONENTS] == tool["mypy"]["mypy_path"][:-1]


def test_init_files_hold_a_docstring_only() -> None:
    talkative = [
        str(path.relative_to(ROOT))
        for path in source_files()
        if path.name == "__init__.py" and len(ast.parse(path.read_text()).body) > 1
    ]
    assert talkative == [], "import a name from the module that defines it"


def test_files_stay_short() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in source_files()}
    long = {name: length for name, length in lengths.items() if length > FILE_LINES_MAX}
    assert long == {}, f"more than {FILE_LINES_MAX} lines: split by idea"


def test_functions_stay_short() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": length
        for path in source_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert long == {}, f"more than {FUNCTION_LINES_MAX} lines: name the steps"


def test_one_function_ends_tasks() -> None:
    """A single `cancel` may be lost (`qlm.domain.shell.tasks`): production calls it only as listed."""
    allowed = {
        "domain/qlm/domain/shell/tasks.py": "it is that function",
        "domain/qlm/domain/shell/loop_lateness.py": "a timer",
        "agents/qlm/agents/shell/tick_timer.py": "a timer",
        "broker/qlm/broker/sqlite/file.py": "a timer",
        "controller/qlm/controller/shell/loop.py": "a timer",
        "gateway/qlm/gateway/http/connections/half_open.py": "a timer",
        "store/qlm/store/redis/pipeline.py": "a timer",
        "cli/qlm/cli/runtime/serving.py": "a second signal; the tasks are being ended already",
        "broker/qlm/broker/rabbitmq/publisher.py": "the thread ends all its tasks just after that",
    }
    found = set()
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr="cancel"), args=[]):
                    found.add(str(path.relative_to(ROOT)))
    assert found == set(allowed)


def test_nothing_drops_a_cancellation() -> None:
    """`asyncio.wait_for` before Python 3.12 drops one that arrives with its result; `timeout` does not."""
    users = [
        str(path.relative_to(ROOT))
        for path in source_files()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "wait_for"
    ]
    assert users == []
