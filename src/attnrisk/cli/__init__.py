"""The command line: a thin door with no science inside. What is heavy is imported by the command that needs it."""

from .app import app, main

__all__ = ["app", "main"]
