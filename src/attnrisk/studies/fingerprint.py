"""A fingerprint of the code that computed a result, so that results of two versions are never mixed."""

import ast
import hashlib
import inspect
import platform
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any

_ROOT = Path(__file__).parents[1]
_PARSING = Lock()  # Python 3.11 fails where two threads parse at the same time


@cache
def fingerprint(question: type) -> str:
    """Changes with the statements of a class of questions and of the packages that its `package` imports.

    Comments, docstrings and layout do not count.
    """
    packages = packages_behind(question.package)  # type: ignore[attr-defined]
    classes = [each for each in question.__mro__ if each.__module__ not in sys.stdlib_module_names]
    parts = [*map(_package_statements, packages), *map(statements_behind, classes)]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


@cache
def versions() -> dict[str, str]:
    """Versions of the packages that computed a result; stored with it, but not part of its address."""
    packages = {name: version(name) for name in ("attnrisk", "jax", "jaxlib", "numpy", "scipy")}
    return packages | {"python": platform.python_version()}


@cache
def packages_behind(package: str) -> tuple[str, ...]:
    """The package and all of this project's that it imports, directly or not."""
    found, wanted = set[str](), [package]
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted += _imported_packages(name)
    return tuple(sorted(found))


def _files(package: str) -> list[Path]:
    return sorted((_ROOT / package).rglob("*.py"))


def _imported_packages(package: str) -> set[str]:
    imported = set[str]()
    for file in _files(package):
        to_root = len(file.relative_to(_ROOT).parts)  # dots of a relative import from the root
        for node in ast.walk(_parsed(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == to_root:
                names = [node.module] if node.module else [each.name for each in node.names]
                imported |= {name.partition(".")[0] for name in names}
    return {name for name in imported if (_ROOT / name).is_dir()}


@cache
def _package_statements(package: str) -> str:
    digest = hashlib.sha256()
    for file in _files(package):
        digest.update(file.relative_to(_ROOT).as_posix().encode())
        digest.update(_statements(file.read_text(encoding="utf-8")).encode())
    return digest.hexdigest()


@cache
def statements_behind(defined: type) -> str:
    """A hash of a class or function and of what it uses of its own module."""
    tree = _parsed(Path(inspect.getfile(defined)).read_text(encoding="utf-8"))
    named = {name: node for node in tree.body for name in _defined_names(node)}
    wanted, used = [defined.__name__], dict[str, str]()
    while wanted:
        name = wanted.pop()
        if name in named and name not in used:
            used[name] = _statements(ast.unparse(named[name]))
            wanted += [node.id for node in ast.walk(named[name]) if isinstance(node, ast.Name)]
    return hashlib.sha256("".join(used[name] for name in sorted(used)).encode()).hexdigest()


def _defined_names(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            nodes = (node for target in targets for node in ast.walk(target))
            return [node.id for node in nodes if isinstance(node, ast.Name)]
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
