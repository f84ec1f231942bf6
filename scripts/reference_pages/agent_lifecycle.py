"""docs/reference/agent-lifecycle.md, from the table that the agent runs by."""

import ast
import inspect
from enum import Enum
from typing import Final

from qlm.agents.core.lifecycle import TABLE, Cause, Step
from qlm.agents.core.request import Disposition, Phase
from scripts.reference_pages.markdown import page, table

_INTRODUCTION: Final = """\
The phases of a request in an agent, from the pull of its message to its acknowledgement or return. \
`agents.core.lifecycle` is the only module that changes a phase, and this page is drawn from its table. \
`FORGOTTEN` is left out of the diagram: it leads out of every phase."""

_GONE: Final = "gone"


def agent_lifecycle_page() -> str:
    """Return the page."""
    return page(
        "Life cycle of a request in an agent",
        _INTRODUCTION,
        diagram(),
        "## Transitions",
        table(("phase", "cause", "next phase", "disposition", "outcome"), _rows()),
        "## Causes",
        table(("cause", "meaning"), ((f"`{cause.name}`", cause.value) for cause in Cause)),
        "## Phases",
        table(("phase", "meaning"), _meanings(Phase)),
        "## Dispositions",
        "A disposition is decided when a generation is stopped or has ended. It is carried out "
        "once all tokens of the request are in its output log.",
        table(("disposition", "meaning"), _meanings(Disposition)),
    )


def diagram() -> str:
    """Return the table as a Mermaid state diagram."""
    edges: dict[tuple[str, str], list[str]] = {}
    for phase, steps in TABLE.items():
        for cause, step in steps.items():
            if cause is not Cause.FORGOTTEN and step.phase is not phase:
                edges.setdefault((phase.name, _target(step)), []).append(_name(cause))
    lines = [f"    {at} --> {to}: {'<br>'.join(names)}" for (at, to), names in edges.items()]
    text = "\n".join(["stateDiagram-v2", f"    [*] --> {Phase.LEASING.name}: pulled", *lines])
    return f"```mermaid\n{text.replace(f'--> {_GONE}', '--> [*]')}\n```"


def _rows() -> list[tuple[str, ...]]:
    return [
        (
            f"`{phase.name}`",
            f"`{cause.name}`",
            "(leaves the agent)" if step.phase is None else f"`{step.phase.name}`",
            "" if step.disposition is None else f"`{step.disposition.name}`",
            _outcome(step),
        )
        for phase, steps in TABLE.items()
        for cause, step in steps.items()
    ]


def _outcome(step: Step) -> str:
    if step.disposition is not Disposition.END:
        return ""
    return "of the event" if step.outcome is None else f"`{step.outcome.value}`"


def _target(step: Step) -> str:
    return _GONE if step.phase is None else step.phase.name


def _name(cause: Cause) -> str:
    return cause.name.lower().replace("_", " ")


def _meanings(enum: type[Enum]) -> list[tuple[str, str]]:
    """Return the members of an enumeration with their docstrings."""
    body = ast.parse(inspect.getsource(enum)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = []
    for assignment, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(assignment, ast.Assign) and isinstance(text, ast.Expr):
            meaning = ast.literal_eval(text.value)
            found.append((f"`{ast.unparse(assignment.targets[0])}`", str(meaning)))
    assert len(found) == len(enum), f"{enum.__name__} has members without a docstring"
    return found
