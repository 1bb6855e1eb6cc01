"""`attnrisk explore`."""

from __future__ import annotations

import errno
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .._check import Refusal, refuse
from . import options
from .command import SERVE, command
from .render import Shown

_PATIENCE = 0.1  # seconds between looks whether the page is there

# Nothing is sent anywhere, no browser is opened, no traceback is shown, no file is watched.
_SETTINGS = """
server.headless=true server.fileWatcherType=none server.showEmailPrompt=false
browser.gatherUsageStats=false client.showErrorDetails=none client.showErrorLinks=false
client.toolbarMode=minimal logger.hideWelcomeMessage=true logger.level=warning
theme.base=light theme.primaryColor=#0072b2
"""


@command(
    SERVE,
    "",
    options.whole("port", "Port of the page; it must be free.", 1, 2**16 - 1, "8501"),
    options.option(
        "host", "Only this machine sees the page unless you change it.", "127.0.0.1", "ADDRESS"
    ),
)
def explore(args: Any) -> Shown:
    """Start a page with sliders on this machine, print its address, and serve it until Ctrl-C.

    Example: attnrisk explore --port 8600
    """
    if find_spec("streamlit") is None:
        raise Refusal("explore needs streamlit: pip install 'attnrisk[explorer]'")
    _check_free(args.host, args.port)
    threading.Thread(target=_announce, args=(args.host, args.port), daemon=True).start()
    _serve(args.host, args.port)
    return Shown().interrupted("")


def _check_free(host: str, port: int) -> None:
    """Refuse an address on which nothing can listen."""
    import socket

    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, ValueError):  # ValueError: what cannot be encoded as a name
        raise refuse("host", repr(host), "an address of this machine") from None
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except PermissionError:
            raise refuse("port", port, "one that you may open") from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise refuse("port", port, f"free on {host}") from None
            raise refuse("host", repr(host), "an address of this machine") from None


def _announce(host: str, port: int) -> None:
    """Print the address as soon as somebody answers there."""
    import urllib.request

    name = f"[{host}]" if ":" in host else host
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with direct.open(f"http://{name}:{port}/_stcore/health", timeout=1.0):
                break
        except OSError:
            time.sleep(_PATIENCE)
    print(f"attnrisk explorer: http://{name}:{port}  (Ctrl-C ends it)")
    sys.stdout.flush()


def _serve(host: str, port: int) -> None:
    """Until a signal comes."""
    from streamlit.web.cli import main

    from .. import explorer

    script = Path(explorer.__file__).with_name("script.py")
    settings = [*_SETTINGS.split(), f"server.address={host}", f"server.port={port}"]
    main(["run", str(script), *(f"--{each}" for each in settings)], standalone_mode=False)
