"""Many questions at once, and the figures drawn from their answers."""

from .cluster import EngineError
from .engine import Status, retry, status, sweep
from .results import dataset, export
from .store import Row, Store, StoreError, default_place
from .study import Point, Study, read_study

__all__ = [
    "EngineError",
    "Point",
    "Row",
    "Status",
    "Store",
    "StoreError",
    "Study",
    "dataset",
    "default_place",
    "export",
    "read_study",
    "retry",
    "status",
    "sweep",
]
