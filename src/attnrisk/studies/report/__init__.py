"""The report: one page that walks from the question to the answer."""

from .page import write_report

__all__ = ["write_report"]
