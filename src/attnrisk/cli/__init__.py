"""The command line: a thin door with no science inside. What is heavy is imported by the command that needs it."""

from .app import main
from .command import app

__all__ = ["app", "main"]
