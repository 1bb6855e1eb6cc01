"""The interactive page: one HTML file, built from the atlas and the sources in this folder; it needs no network."""

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from string import Template
from typing import Any

__all__ = ["SCRIPTS", "make_page", "read_atlas"]

# Joined in this order into one script.
SCRIPTS = ("interpolate.js", "chart.js", "state.js", "sections.js", "steps.js", "page.js")


def read_atlas() -> dict[str, Any]:
    """The atlas that comes with the package."""
    return json.loads(_source("atlas.json"))


def make_page(atlas: Mapping[str, Any] | None = None) -> str:
    """The page of an atlas, by default the one that comes with the package."""
    data = json.dumps(
        read_atlas() if atlas is None else atlas, separators=(",", ":"), allow_nan=False
    )
    # Names are the user's: without "<" nothing in the data can end the script element that holds it.
    script = '"use strict";\n' + "".join(map(_source, SCRIPTS))
    parts = {"style": _source("page.css"), "script": script}
    hashes = {f"{name}_hash": _hash(part) for name, part in parts.items()}
    data = data.replace("<", "\\u003c")
    return Template(_source("page.html")).substitute(parts, **hashes, data=data)


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(part: str) -> str:
    """The hash of the script for the content security policy, which allows no other script."""
    return base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
