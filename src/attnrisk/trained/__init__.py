"""Small decoders trained on recall, on a needle among noise, and on text, with any attention in place of softmax.

Needs the extra `trained` (optax). Everything here is float32 or bfloat16.
"""

from .model import RECURRENCES, Decoder
from .recurrence import chunked_recurrence
from .tasks import (
    TASKS,
    AbstractTokenTask,
    Batch,
    Needle,
    Recall,
    Text,
    get_task,
    python_documentation,
    zoology,
)
from .training import Copy, Setting, Trained, best_of, losses_of, train

__all__ = [
    "RECURRENCES",
    "TASKS",
    "AbstractTokenTask",
    "Batch",
    "Copy",
    "Decoder",
    "Needle",
    "Recall",
    "Setting",
    "Text",
    "Trained",
    "best_of",
    "chunked_recurrence",
    "get_task",
    "losses_of",
    "python_documentation",
    "train",
    "zoology",
]
