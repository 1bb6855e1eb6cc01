"""`attnrisk explore`: refusals in one line, a page that answers, and an end on Ctrl-C."""

import importlib.util
import socket
import subprocess
import sys
import urllib.request

import pytest

from attnrisk.cli import explore, main

pytest.importorskip(
    "streamlit", reason="the explorer is an extra: pip install 'attnrisk[explorer]'"
)


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["explore", *arguments])
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_a_port_in_use(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        err = refused(capsys, "--port", str(port))
    assert err.startswith(
        f"Error: --port = {port} is not allowed: --port must be free on 127.0.0.1"
    )


@pytest.mark.parametrize("word", ["0", "65536", "many", "-1"])
def test_a_port_that_cannot_be(capsys, word):
    assert refused(capsys, f"--port={word}").startswith("Error: --port = ")


@pytest.mark.parametrize("word", ["", "no such host", "a" * 70, "192.0.2.1"])
def test_a_host_that_is_not_here(capsys, monkeypatch, word):
    def nobody(*_, **__):
        raise socket.gaierror

    if word != "192.0.2.1":  # an address, for which nobody is asked
        monkeypatch.setattr(socket, "getaddrinfo", nobody)
    assert "not allowed" in refused(capsys, "--host", word)


def test_without_streamlit(capsys, monkeypatch):
    monkeypatch.setattr(explore, "find_spec", lambda name: None)
    assert "pip install 'attnrisk[explorer]'" in refused(capsys)


def test_the_library_does_not_load_it():
    code = "import attnrisk, attnrisk.cli, sys; print('streamlit' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert ran.stdout == "False\n"
    assert importlib.util.find_spec("streamlit") is not None  # it could have


def listening(port):
    """Addresses of this machine that answer on the port."""
    found = []
    for host in ("127.0.0.1", "127.0.0.2"):
        with socket.socket() as probe:
            probe.settimeout(5.0)
            if probe.connect_ex((host, port)) == 0:
                found.append(host)
    return found


def test_a_page_that_answers_and_ends(served):
    assert served.line.startswith(f"attnrisk explorer: {served.address}")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(served.address, timeout=60) as page:
        assert page.status == 200
    assert listening(served.port) == ["127.0.0.1"]
    code, err = served.interrupt()
    assert code == 130
    assert err == ""
    assert listening(served.port) == []
