"""Each section of docs/theory.md names the files that implement it, and each section that the code cites exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "attnrisk"
THEORY = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
HEADING = re.compile(r"^##+ (\d+(?:\.\d+)?)\.? (.*)$", re.MULTILINE)
SECTIONS = {found[1]: THEORY[found.end() :].lstrip() for found in HEADING.finditer(THEORY)}
CITED = re.compile(r"\bsections? (\d+(?:\.\d+)?)((?:(?:,| and| to| or) \d+(?:\.\d+)?)*)")


def files_of(section: str) -> list[str]:
    line = re.match(r"\*Code: (.*?)\.\*$", SECTIONS[section], re.MULTILINE | re.DOTALL)
    return re.findall(r"`([\w/]+(?:\.py|/))`", line[1]) if line else []


def test_the_sections_are_found():
    assert {str(number) for number in range(1, 13)} <= set(SECTIONS)
    assert {"4.1", "4.2", "6.4", "7.1", "12.2"} <= set(SECTIONS)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_names_its_files(section):
    named = files_of(section)
    assert named
    assert [name for name in named if not (PACKAGE / name).exists()] == []


def test_sections_that_the_code_cites_exist():
    cited = {
        (number, path.name)
        for path in PACKAGE.rglob("*.py")
        for first, rest in CITED.findall(path.read_text(encoding="utf-8"))
        for number in [first, *re.findall(r"\d+(?:\.\d+)?", rest)]
    }
    assert len(cited) > 50
    assert {each for each in cited if each[0] not in SECTIONS} == set()
