"""Explanations for the live page: those of `qlm plan explain`, as plain data.

A short plan is explained on a thread. A long one is explained in another process (`python -m` this module): a
plan of 1000 groups takes seconds, which would slow down the gateway's own work.
"""

import asyncio
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from qlm.cli.inspect.layout import Table
from qlm.cli.plans.explaining import group_sentences, has_group, request_sentences, unservable
from qlm.cli.processes.module import start_module
from qlm.domain.errors import InvalidValueError, QlmError
from qlm.gateway.api.fields.live import ExplanationText
from qlm.gateway.live.explaining import Question
from qlm.planner.published_plan import PLAN
from qlm.planner.verify.referee import verify

LONG_BYTES: Final = 60_000
"""A longer plan, of about 150 groups, is explained in another process: the start of that takes a second."""

EXPLAIN_MAX_S: Final = 60.0
"""An explanation that takes longer is given up."""

_LOGGED_CHARACTERS: Final = 300


class ExplanationFailedError(QlmError):
    """The process that should explain failed."""


async def explain_for_page(question: Question) -> Sequence[ExplanationText] | None:
    """Explain a group or request; None if it is not known.

    Raises:
        InvalidValueError: The plan cannot be read, or cannot be served.
        ExplanationFailedError: The process for a long plan failed.
    """
    if len(question["plan"] or "") <= LONG_BYTES:
        return await asyncio.to_thread(explained, question)
    process = await start_module("qlm.cli.plans.page", reads=True, writes=True)
    try:
        async with asyncio.timeout(EXPLAIN_MAX_S):
            result, errors = await process.communicate(orjson.dumps(question))
    except TimeoutError as error:
        raise ExplanationFailedError(f"the explanation took longer than {EXPLAIN_MAX_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise ExplanationFailedError(errors.decode(errors="replace").strip()[-_LOGGED_CHARACTERS:])
    parts: Sequence[ExplanationText] | None = orjson.loads(result)
    return parts


def explained(question: Question) -> Sequence[ExplanationText] | None:
    """Explain a group or request; None if it is not known.

    Raises:
        InvalidValueError: The plan cannot be read, or cannot be served.
    """
    kept = None if question["plan"] is None else PLAN.decode(question["plan"].encode())
    if kept is not None and (wrong := unservable(verify(kept.problem, kept.plan))):
        raise InvalidValueError("plan", wrong, "a plan that can be served")
    if kept is not None and has_group(kept.problem, question["name"]):
        return plain_parts(group_sentences(question["name"], kept, question["now_s"]))
    if question["request"] is None:
        return None
    request: Any = question["request"]
    classmates: Any = question["classmates"]
    configured: Any = question["configured"]
    return plain_parts(request_sentences(request, kept, classmates, configured, question["now_s"]))


def plain_parts(parts: Iterable[Table | str]) -> list[ExplanationText]:
    """Return sentences and tables as plain data; empty lines are left out."""
    return [_plain(part) for part in parts if part]


def _plain(part: Table | str) -> ExplanationText:
    if isinstance(part, str):
        return {"text": part}
    return {
        "title": part.title,
        "columns": [each.name for each in part.columns],
        "right": [each.right for each in part.columns],
        "rows": [list(row) for row in zip(*(each.cells for each in part.columns), strict=True)],
        "notes": part.notes,
    }


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(explained(orjson.loads(sys.stdin.buffer.read()))))
