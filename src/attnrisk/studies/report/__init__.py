"""The report: one page with the main results."""

from .page import write_report

__all__ = ["write_report"]
