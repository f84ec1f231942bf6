"""The errors that clients can get, found in the gateway's code where they are made."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

import qlm.gateway
from qlm.domain.outcome import Outcome
from qlm.gateway.api.errors import from_outcome

Function = ast.FunctionDef | ast.AsyncFunctionDef

_FOLDER: Final = Path(qlm.gateway.__path__[0])

_RATE_LIMIT: Final = 429
_KINDS: Final = {"400": "invalid_request_error", str(_RATE_LIMIT): "rate_limit_error"}
"""Kinds of refusals, by status; of any other it is `server_error`."""


@dataclass(frozen=True, slots=True)
class Maker:
    """A call that makes an error.

    Attributes:
        arguments: Names of its arguments, in order.
        given: What it says where the call does not.
    """

    arguments: Sequence[str]
    given: Mapping[str, str]


_MAKERS: Final[Mapping[str, Maker]] = {
    "ApiError": Maker((), {"kind": "invalid_request_error"}),
    "invalid": Maker(
        ("param", "message", "code"),
        {"status": "400", "kind": "invalid_request_error", "code": "invalid_value"},
    ),
    "unavailable": Maker(("message", "code"), {"status": "503", "kind": "server_error"}),
    "too_long": Maker(
        ("param", "message"),
        {"status": "400", "kind": "invalid_request_error", "code": "context_length_exceeded"},
    ),
    "Refuse": Maker((), {}),
    "_full": Maker(
        ("load", "limits", "forecast", "code", "message"),
        {"status": str(_RATE_LIMIT), "kind": "rate_limit_error"},
    ),
}


Error = tuple[str, str, str, str]
"""Status, code, type and message."""

_VARIES: Final = "…"


_PAGE: Final = _FOLDER / "http" / "page"
"""The live page is no API: its errors are sentences for a person."""


def error_rows() -> list[Error]:
    """Return each error with all its messages, in order."""
    messages: dict[tuple[str, str, str], set[str]] = {}
    for status, code, kind, message in (*outcomes(), *_written()):
        messages.setdefault((status, code, kind), set()).add(message)
    return [
        (status, f"`{code}`", f"`{kind}`", "; or: ".join(sorted(said - {_VARIES}) or [_VARIES]))
        for (status, code, kind), said in sorted(messages.items())
    ]


def outcomes() -> Iterator[Error]:
    """Describe the bad ends of requests."""
    for error in (from_outcome(outcome) for outcome in Outcome if not outcome.ok):
        yield str(error.status), str(error.code), error.kind, error.message


def _written() -> Iterator[Error]:
    for path in sorted(_FOLDER.rglob("*.py")):
        if path.is_relative_to(_PAGE):
            continue
        module = import_module(".".join(("qlm.gateway", *path.relative_to(_FOLDER).with_suffix("").parts)))
        for function in functions_of(module):
            yield from reader_of(module, function).errors()


@cache
def functions_of(module: ModuleType) -> Sequence[Function]:
    """Return the functions and methods that a module defines."""
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    return [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def reader_of(module: ModuleType, function: Function) -> "Reader":
    """Make the reader of a function."""
    return Reader(module, function, {each.name: each for each in functions_of(module)})


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the errors that one function makes."""

    module: ModuleType
    function: Function
    beside: Mapping[str, Function]

    def errors(self) -> Iterator[Error]:
        for node in ast.walk(self.function):
            if isinstance(node, ast.Call) and (made := self.made_by(node)) is not None:
                yield made

    def made_by(self, call: ast.Call) -> Error | None:
        """Return the error that a call makes, if it makes one whose status and code the code says."""
        if not isinstance(call.func, ast.Name) or call.func.id not in _MAKERS:
            return None
        said = self._said(call, _MAKERS[call.func.id])
        if _VARIES in (said.get("status", _VARIES), said.get("code", _VARIES)):
            return None
        return said["status"], said["code"], said["kind"], said["message"]

    def _said(self, call: ast.Call, maker: Maker) -> dict[str, str]:
        named = dict(zip(maker.arguments, call.args, strict=False))
        named |= {each.arg: each.value for each in call.keywords if each.arg is not None}
        said = {**maker.given}
        said |= {"code" if name == "reason" else name: self._text(node) for name, node in named.items()}
        said.setdefault("kind", _KINDS.get(said.get("status", ""), "server_error"))
        return said

    def _text(self, node: ast.expr) -> str:
        """Return a text or number as it stands in the code, with … for what varies."""
        match node:
            case ast.Constant(value=str() | int() as value):
                return str(value)
            case ast.JoinedStr(values=parts):
                return "".join(self._text(each) for each in parts)
            case ast.FormattedValue(value=value):
                return self._text(value)
            case ast.Name(id=name) if name.isupper() and isinstance(
                getattr(self.module, name, None), str | int
            ):
                return str(getattr(self.module, name))
            case ast.Name(id=name):
                return self._assigned(name, node.lineno)
            case ast.Call(func=ast.Name(id=name)) if name in self.beside:
                return self._returned(self.beside[name])
        return _VARIES

    def _assigned(self, name: str, line: int) -> str:
        """Return what was last written to a variable above a line, if that is a text."""
        found = [
            each.value
            for each in ast.walk(self.function)
            if isinstance(each, ast.Assign) and each.lineno < line
            for target in each.targets
            if isinstance(target, ast.Name) and target.id == name
        ]
        last = max(found, key=lambda each: each.lineno, default=None)
        return self._text(last) if isinstance(last, ast.JoinedStr | ast.Constant) else _VARIES

    def _returned(self, function: Function) -> str:
        last = function.body[-1]
        value = last.value if isinstance(last, ast.Return) else None
        return self._text(value) if isinstance(value, ast.JoinedStr) else _VARIES
