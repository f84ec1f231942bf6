"""The types of expressions, as far as annotations and constructors define them."""

import ast
import inspect
import sys
import types
import typing
from types import FunctionType, ModuleType
from typing import Any

from scripts.reference_pages.errors import functions_of


class Types:
    """The types of the names in one function."""

    def __init__(self, function: FunctionType, owner: type | None) -> None:
        """Read the annotations of a function; `owner` is the class of its `self`."""
        self._globals = function.__globals__
        self._types: dict[str, Any] = dict(_hints(function))
        parameters = list(inspect.signature(function).parameters)
        if owner is not None and parameters and parameters[0] == "self":
            self._types["self"] = owner
        self._parameters = set(parameters)

    def assign(self, name: str, value: ast.expr) -> None:
        """Note what a variable is assigned."""
        self._types[name] = self.type_of(value)

    def annotate(self, name: str, annotation: ast.expr) -> None:
        """Note the type that a variable is declared with; of one that may be None, the other."""
        declared = eval(ast.unparse(annotation), self._globals)  # of the repository's own code
        known = [each for each in typing.get_args(declared) or (declared,) if each is not types.NoneType]
        self._types[name] = known[0] if len(known) == 1 else None

    def value(self, node: ast.expr) -> Any:
        """Return the function, class, module or constant that an expression names; None if it is none."""
        if isinstance(node, ast.Name):
            if node.id in self._types or node.id in self._parameters:
                return None
            return self._globals.get(node.id)
        if isinstance(node, ast.Attribute):
            if isinstance(of := self.value(node.value), ModuleType):
                return getattr(of, node.attr, None)
            if (owner := self.type_of(node.value)) is not None:
                return inspect.getattr_static(owner, node.attr, None)
        return None

    def type_of(self, node: ast.expr) -> type | None:
        """Return the class of an expression's value; None if it is unknown."""
        found: Any = None
        match node:
            case ast.Await(value=value):
                return self.type_of(value)
            case ast.Name(id=name):
                found = self._types.get(name)
            case ast.Attribute(value=value, attr=name) if (owner := self.type_of(value)) is not None:
                found = _attribute(owner, name)
            case ast.Call(func=function):
                called = self.value(function)
                found = called if isinstance(called, type) else _hints(called).get("return")
        return found if isinstance(found, type) else None

    def exceptions(self, node: ast.expr | None) -> tuple[type[Exception], ...]:
        """Return the exceptions that a handler names."""
        if node is None:
            return (Exception,)
        nodes = node.elts if isinstance(node, ast.Tuple) else [node]
        found = [self._globals.get(ast.unparse(each)) or _builtin(each) for each in nodes]
        return tuple(each for each in found if isinstance(each, type) and issubclass(each, Exception))


def _builtin(node: ast.expr) -> Any:
    return getattr(sys.modules["builtins"], ast.unparse(node), None)


def _hints(function: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(function)) if callable(function) else {}
    except (NameError, TypeError):
        return {}


def _attribute(owner: type, name: str) -> Any:
    """Return the type of an attribute: as annotated in the class, as a property, or as `__init__` sets it."""
    if (annotated := typing.get_type_hints(owner).get(name)) is not None:
        return annotated
    member = inspect.getattr_static(owner, name, None)
    if isinstance(member, property) and member.fget is not None:
        return _hints(member.fget).get("return")
    made = owner.__dict__.get("__init__")
    if not isinstance(made, FunctionType):
        return None
    known = Types(made, None)
    for each in functions_of(sys.modules[owner.__module__]):
        if each.name != "__init__" or each.lineno != made.__code__.co_firstlineno:
            continue
        for node in ast.walk(each):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"self.{name}":
                return known.type_of(node.value)
    return None
