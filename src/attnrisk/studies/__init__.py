"""Parameter sweeps, the database of results, and the figures drawn from them."""

from .cluster import EngineError
from .execute import Session, Threads, Workers
from .question import AbstractQuestion
from .store import Row, Store, StoreError, default_place
from .study import Study, read_study
from .sweeps import Status, dataset, export, retry, status, sweep

__all__ = [
    "AbstractQuestion",
    "EngineError",
    "Row",
    "Session",
    "Status",
    "Store",
    "StoreError",
    "Study",
    "Threads",
    "Workers",
    "dataset",
    "default_place",
    "export",
    "read_study",
    "retry",
    "status",
    "sweep",
]
