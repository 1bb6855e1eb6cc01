"""Which numerics gave an answer: a fingerprint of the code that computes, so that answers of two never mix unseen."""

import ast
import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

_ROOMS = ("tasks", "attention", "quadrature", "population", "learning", "simulation")
_HERE = Path(__file__).parent


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


def _statements(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
