"""Ctrl-C: exit code 130 and one line, within seconds, whatever compiled code is doing."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from .render import INTERRUPTED

RESUMED = "Interrupted: run the same command again to go on"
_GRACE = 3.0  # seconds for a command to end by itself
_CURSOR = "\r\x1b[K\x1b[?25h"  # clear the line of a progress bar and show the cursor that it hid
_ended = threading.Event()  # set when no command runs
_said = ["Interrupted"]  # what is printed last; the innermost context decides


def end_now() -> NoReturn:
    """Exit at once: the interpreter's own exit waits for threads that compile, or crashes in them."""
    if "multiprocessing" in sys.modules:
        for child in sys.modules["multiprocessing"].active_children():
            child.kill()
    with suppress(OSError, ValueError, AttributeError):
        start = _CURSOR if sys.stderr.isatty() else ""
        os.write(sys.stderr.fileno(), f"{start}{_said[-1]}\n".encode())
    os._exit(INTERRUPTED)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C raises `KeyboardInterrupt`, and ends the process if it has not ended `_GRACE` seconds later.

    Python runs a signal's handler between two steps of the main thread, which compiled code may keep busy; the
    wake-up descriptor is written to at once, and another thread reads it. A SIGINT that is ignored stays ignored.
    """
    if not _is_heard():
        yield
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    usual = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    _ended.clear()

    def watch() -> None:
        while numbers := os.read(read, 64):
            if signal.SIGINT in numbers and not _ended.wait(_GRACE):
                end_now()
        os.close(read)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        _ended.set()
        signal.set_wakeup_fd(usual)
        os.close(write)  # the thread reads the end of the pipe


@contextmanager
def immediate(said: str = "Interrupted") -> Iterator[None]:
    """Ctrl-C ends the process at once: jax may crash if it is interrupted. What is in a store is safe."""
    with _handler(lambda number, frame: end_now(), said):
        yield


@contextmanager
def deferred(said: str = "Interrupted") -> Iterator[Callable[[], None]]:
    """Ctrl-C takes effect where the function given is called, so that a result so far is kept. A second one is not put
    off."""
    pressed = threading.Event()

    def note(number: int, frame: Any) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, lambda number, frame: end_now())

    def check() -> None:
        if pressed.is_set():
            raise KeyboardInterrupt

    with _handler(note, said):
        yield check


@contextmanager
def _handler(handler: Callable[[int, Any], Any], said: str) -> Iterator[None]:
    if not _is_heard():
        yield
        return
    usual = signal.signal(signal.SIGINT, handler)
    _said.append(said)
    try:
        yield
    finally:
        _said.pop()
        signal.signal(signal.SIGINT, usual)


def _is_heard() -> bool:
    """Whether SIGINT can be handled: not in a background job of a shell, nor in another thread."""
    ignored = signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None)
    return not ignored and threading.current_thread() is threading.main_thread()
