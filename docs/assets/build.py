"""What the build does to a page: formulas become MathML, and a section named in a docstring a link. The page with
sliders is written beside the others.

Browsers draw MathML by themselves, so that the site needs no script and no network for its formulas.
"""

import html
import re
from pathlib import Path
from typing import Any

from markdown.extensions.toc import slugify
from math_core import LatexToMathML

from attnrisk.page import make_page

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.DOTALL)
_HEADING = re.compile(r"^##+ ((\d+(?:\.\d)?)\.? .*)$", re.MULTILINE)
_SECTIONS = re.compile(r"\bsections? \d+(?:\.\d)?(?:(?:,| and| to) \d+(?:\.\d)?)*")

_converter = LatexToMathML()


def on_page_content(content: str, page: Any, config: Any, **_: Any) -> str:
    """The page with its formulas converted (one that is not understood ends the build), and linked if of the API."""
    if page.url.startswith("api/"):
        content = _linked(content, _addresses(Path(config.docs_dir, "theory.md")))
    return _FORMULA.sub(_mathml, content)


def on_post_build(config: Any, **_: Any) -> None:
    """The page that docs/explore.md embeds."""
    Path(config.site_dir, "explore-page.html").write_text(make_page(), encoding="utf-8")


def _mathml(found: re.Match[str]) -> str:
    tag, formula = found.groups()
    shown = _converter.convert_with_local_state(html.unescape(formula), displaystyle=tag == "div")
    # Browsers do not scroll a formula itself.
    return f'<div class="formula" tabindex="0">{shown}</div>' if tag == "div" else shown


def _addresses(theory: Path) -> dict[str, str]:
    """The anchor of every numbered section."""
    headings = _HEADING.findall(theory.read_text(encoding="utf-8"))
    return {number: slugify(title, "-") for title, number in headings}


def _linked(content: str, addresses: dict[str, str]) -> str:
    """`section 4.2` as a link to it; a section that does not exist ends the build."""

    def link(number: re.Match[str]) -> str:
        return f'<a href="../theory.html#{addresses[number[0]]}">{number[0]}</a>'

    return _SECTIONS.sub(lambda found: re.sub(r"\d+(?:\.\d)?", link, found[0]), content)
