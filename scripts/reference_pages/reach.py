"""Static analysis of a handler: the errors that can leave it, and the headers and parameters that it reads.

It follows the functions and methods of the gateway that the handler calls or mentions, by the types in their
annotations. An exception that is caught on the way does not count. The errors of ports are those that their
docstrings name.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, Final

from qlm.domain import errors as domain_errors
from qlm.domain.errors import InvalidValueError, QlmError
from qlm.gateway.api.errors import ApiError, from_outcome, from_qlm
from qlm.gateway.files.storage import Storage
from qlm.gateway.http.responses import StreamAnswer, WholeAnswer
from qlm.gateway.sessions.hub import Hub
from scripts.reference_pages.errors import Error, Function, functions_of, outcomes, reader_of
from scripts.reference_pages.types_in_code import Types

_ERRORS_FROM_ELSEWHERE: Final[Mapping[Any, Any]] = {
    WholeAnswer: Hub.interrupt_all,
    StreamAnswer: Hub.interrupt_all,
}
"""Functions that write errors to waiting answers without being called by them."""

_HEADERS: Final = re.compile(r"[A-Z_]+_HEADERS?")


@dataclass(slots=True)
class Reached:
    """The result of the analysis.

    Attributes:
        faults: Errors by the class that leaves, which a caller may catch.
        headers: Names of headers that are read.
        query: Names of query parameters that are read.
    """

    faults: set[tuple[type[Exception], Error]] = field(default_factory=set)
    headers: set[str] = field(default_factory=set)
    query: set[str] = field(default_factory=set)

    @property
    def errors(self) -> set[Error]:
        """The errors as clients see them."""
        return {error for _, error in self.faults}

    def add(self, other: "Reached") -> None:
        """Add what was found elsewhere."""
        self.faults |= other.faults
        self.headers |= other.headers
        self.query |= other.query


def reached(handler: Any) -> Reached:
    """Analyze a handler."""
    return _reached(inspect.unwrap(handler), None)


_begun: set[Any] = set()


@cache
def _reached(function: FunctionType, owner: type | None) -> Reached:
    if function in _begun:  # it calls itself: what it comes to is found already
        return Reached()
    _begun.add(function)
    module = sys.modules[function.__module__]
    walk = _Walk(module, _node_of(module, function), Types(function, owner))
    for statement in walk.function.body:
        walk.visit(statement)
    _begun.discard(function)
    return walk.found


def _node_of(module: ModuleType, function: FunctionType) -> Function:
    first = function.__code__.co_firstlineno
    return next(
        each
        for each in functions_of(module)
        if each.name == function.__name__
        and first in (each.lineno, *(line.lineno for line in each.decorator_list))
    )


class _Walk(ast.NodeVisitor):
    """Reads one function, with what it can reach."""

    def __init__(self, module: ModuleType, function: Function, known: Types) -> None:
        self.function = function
        self.found = Reached()
        self._known = known
        self._reader = reader_of(module, function)
        self._caught: dict[str, tuple[type[Exception], ...]] = {}

    def visit_Try(self, node: ast.Try) -> None:
        """Leave out what is caught, unless it is raised again."""
        inner = self._apart(node.body)
        for handler in node.handlers:
            kinds = self._known.exceptions(handler.type)
            if handler.name:
                self._caught[handler.name] = kinds
            again = any(isinstance(each, ast.Raise) and each.exc is None for each in ast.walk(handler))
            if not again:
                inner.faults = {each for each in inner.faults if not issubclass(each[0], kinds)}
            for statement in handler.body:
                self.visit(statement)
        self.found.add(inner)
        for statement in (*node.orelse, *node.finalbody):
            self.visit(statement)

    def visit_With(self, node: ast.With) -> None:
        """Leave out what is suppressed."""
        inner = self._apart([*node.items, *node.body])
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("suppress"):
                kinds = tuple(kind for each in call.args for kind in self._known.exceptions(each))
                inner.faults = {each for each in inner.faults if not issubclass(each[0], kinds)}
        self.found.add(inner)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Note the type of a variable."""
        self.generic_visit(node)
        if isinstance(node.targets[0], ast.Name):
            self._known.assign(node.targets[0].id, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Note the declared type of a variable."""
        self.generic_visit(node)
        if isinstance(node.target, ast.Name):
            self._known.annotate(node.target.id, node.annotation)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Note what leaves."""
        self._left(node.exc)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Note errors that are made, and names that are read."""
        if (made := self._reader.made_by(node)) is not None:
            self.found.faults.add((ApiError, made))
        if isinstance(node.func, ast.Name) and node.func.id == "error_answer":
            self._left(node.args[0])
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            self._read(ast.unparse(node.func.value), node.args[0])
        self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> None:
        """Note what a port raises: where it is waited for, not where it is only asked."""
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            owner, method = self._known.type_of(call.func.value), self._known.value(call.func)
            if (
                owner is not None
                and inspect.iscoroutinefunction(method)
                and (owner is Storage or owner.__dict__.get("_is_protocol"))
            ):
                self._raise_documented(owner, method)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        """Go on to what a name stands for."""
        value = self._known.value(node)
        if _HEADERS.fullmatch(node.id) and value is not None:
            self.found.headers |= {value} if isinstance(value, str) else set(value)
        self._go_on(value, None)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Go on to a method, a property or what a module has."""
        owner = self._known.type_of(node.value)
        self._go_on(self._known.value(node), owner)
        self.generic_visit(node)

    def _apart(self, nodes: list[Any]) -> Reached:
        outer, self.found = self.found, Reached()
        for each in nodes:
            self.visit(each)
        inner, self.found = self.found, outer
        return inner

    def _left(self, raised: ast.expr | None) -> None:
        """Note an error that leaves: made of an outcome, of an error caught before, or one of the domain."""
        if not isinstance(raised, ast.Call):
            return
        made_by = self._known.value(raised.func)
        if made_by is from_outcome:
            self.found.faults |= {(ApiError, each) for each in outcomes()}
        elif made_by is from_qlm and isinstance(raised.args[0], ast.Name):
            for kind in self._caught.get(raised.args[0].id, ()):
                self._raise(kind)
        elif made_by is from_qlm:
            self._left(raised.args[0])
        elif isinstance(made_by, type) and issubclass(made_by, QlmError):
            self._raise(made_by)

    def _raise_documented(self, port: type, method: FunctionType) -> None:
        for kind in _documented(port, method):
            self._raise(kind)

    def _raise(self, kind: type[Exception]) -> None:
        # What from_qlm knows no answer to ends as any other failure of the gateway would.
        if issubclass(kind, QlmError) and (error := _as_client_sees(kind))[0] != "500":
            self.found.faults.add((kind, error))

    def _read(self, source: str, key: ast.expr) -> None:
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            return
        if source.endswith("headers"):
            self.found.headers.add(key.value)
        elif source in ("query", "request.query_params"):
            self.found.query.add(key.value)

    def _go_on(self, value: Any, owner: type | None) -> None:
        if (beside := _ERRORS_FROM_ELSEWHERE.get(value) if isinstance(value, type) else None) is not None:
            self.found.add(_reached(beside, Hub))
        if isinstance(value, property):
            value = value.fget
        value = inspect.unwrap(value) if callable(value) else value
        if not isinstance(value, FunctionType):
            return
        if owner is not None and getattr(owner, "_is_protocol", False):
            if not inspect.iscoroutinefunction(value):
                self._raise_documented(owner, value)
        elif value.__module__.startswith("qlm.gateway.") and value not in (from_outcome, from_qlm):
            self.found.add(_reached(value, owner))


def _as_client_sees(kind: type[QlmError]) -> Error:
    error = from_qlm(kind("…", "…", "…") if issubclass(kind, InvalidValueError) else kind("…"))
    return str(error.status), str(error.code), error.kind, error.message


def _documented(port: type, method: FunctionType) -> Iterator[type[QlmError]]:
    """Yield what a method of a port says that it raises, and what the port says of all its methods."""
    said = (inspect.getdoc(method) or "").partition("Raises:\n")[2]
    said += " ".join(re.findall(r"Every method may raise (\w+)", port.__doc__ or ""))
    for name in re.findall(r"\b\w+Error\b", said):
        kind = getattr(domain_errors, name, None)
        if isinstance(kind, type) and issubclass(kind, QlmError):
            yield kind
