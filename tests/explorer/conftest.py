"""The page as a process of its own."""

import signal
import socket
import subprocess
import sys

import pytest


class Served:
    """A running page: its address, its port and its process."""

    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = "from attnrisk.cli import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", command, "explore", "--port", str(self.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.line = self.process.stdout.readline()  # comes when the page answers, or ends
        self.address = f"http://127.0.0.1:{self.port}"

    def interrupt(self):
        """Ctrl-C; the exit code, and what was said on standard error."""
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


@pytest.fixture(scope="module")
def served():
    pytest.importorskip("streamlit", reason="the explorer is an extra")
    page = Served()
    yield page
    if page.process.poll() is None:
        page.interrupt()
