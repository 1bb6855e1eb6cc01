"""Which numerics gave an answer: a fingerprint of the code that computes, so that answers of two never mix unseen."""

import ast
import hashlib
import inspect
import platform
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any

_ROOMS = ("tasks", "attention", "numerics", "population", "learning", "simulation")
_HERE = Path(__file__).parent
_PARSING = Lock()  # Python 3.11 fails where two threads parse at the same time


@cache
def fingerprint() -> str:
    """Changes with every statement of the rooms that compute, and not with comments, docstrings or layout."""
    rooms = [file for room in _ROOMS for file in sorted((_HERE.parent / room).glob("*.py"))]
    digest = hashlib.sha256()
    for file in [*rooms, _HERE / "questions.py"]:
        digest.update(f"{file.parent.name}/{file.name}".encode())
        digest.update(_statements(file.read_text(encoding="utf-8")).encode())
    return digest.hexdigest()[:16]


@cache
def versions() -> dict[str, str]:
    """Of what an answer stands on; kept beside it, and no part of its address."""
    packages = {name: version(name) for name in ("attnrisk", "jax", "jaxlib", "numpy", "scipy")}
    return packages | {"python": platform.python_version()}


@cache
def statements_behind(work: Callable[..., Any]) -> str:
    """A fingerprint of a function and of what it uses in its own module: what decides its answers there."""
    tree = _parsed(Path(inspect.getfile(work)).read_text(encoding="utf-8"))
    named = {name: node for node in tree.body for name in _names_given(node)}
    wanted, used = [work.__name__], dict[str, str]()
    while wanted:
        name = wanted.pop()
        if name in named and name not in used:
            used[name] = _statements(ast.unparse(named[name]))
            wanted += [node.id for node in ast.walk(named[name]) if isinstance(node, ast.Name)]
    return hashlib.sha256("".join(used[name] for name in sorted(used)).encode()).hexdigest()[:16]


def _names_given(statement: ast.stmt) -> list[str]:
    """What a statement of a module defines, imports left out."""
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [
                node.id
                for target in targets
                for node in ast.walk(target)
                if isinstance(node, ast.Name)
            ]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case _:
            return []


def _parsed(source: str) -> ast.Module:
    with _PARSING:
        return ast.parse(source)


def _statements(source: str) -> str:
    tree = _parsed(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return _written(tree)


def _written(part: Any) -> str:
    """As `ast.dump`, but the same in every version of Python: new fields of a node are empty in old code."""
    if isinstance(part, list):
        return f"[{', '.join(map(_written, part))}]"
    if not isinstance(part, ast.AST):
        return repr(part)
    fields = (
        f"{name}={_written(it)}" for name, it in ast.iter_fields(part) if it not in (None, [])
    )
    return f"{type(part).__name__}({', '.join(fields)})"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
