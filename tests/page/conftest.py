"""Pages opened in a browser that record every request and every message."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from attnrisk.page import make_page

CHECKS = Path(__file__).with_name("checks.js").read_text(encoding="utf-8")
PATIENCE = 30_000  # milliseconds, on a machine that does other things too


@pytest.fixture(scope="session")
def file(tmp_path_factory):
    """The page as it ships."""
    path = tmp_path_factory.mktemp("page") / "explore.html"
    path.write_text(make_page(), encoding="utf-8")
    return path


@pytest.fixture
def visit(browser, file):
    """Open a page: `visit(hash, width=…, scheme=…, file=…)`. At the end there was no request and no message."""
    opened = []

    def open_page(fragment="", width=1280, scheme="light", file=file):
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.set_default_timeout(PATIENCE)
        seen = SimpleNamespace(page=page, requests=[], complaints=[])
        page.on("request", lambda request: seen.requests.append(request.url))
        page.on("console", lambda message: seen.complaints.append(message.text))
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.goto(file.as_uri() + fragment)
        page.wait_for_function("performance.getEntriesByName('picture').length > 0")
        page.evaluate(CHECKS)
        opened.append((seen, file.as_uri()))
        return page

    yield open_page
    for seen, address in opened:
        assert [url for url in seen.requests if url.split("#")[0] != address] == []
        assert seen.complaints == []
        seen.page.close()
