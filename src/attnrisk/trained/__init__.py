"""Small decoders with any attention in place of softmax, trained on recall, needle and text tasks.

Needs the extra `trained` (optax). Computations are in float32 or bfloat16.
"""

from importlib.util import find_spec

from .._check import Refusal

if find_spec("optax") is None:
    raise Refusal("trained models need optax: pip install 'attnrisk[trained]'")

from .grid import (
    figure1_model,
    figure1_models,
    long_recall_models,
    long_training_models,
    setting_of,
    train_grid,
    zoology_models,
)
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
from .training import Copy, Setting, Trained, losses_of, train

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
    "chunked_recurrence",
    "figure1_model",
    "figure1_models",
    "get_task",
    "long_recall_models",
    "long_training_models",
    "losses_of",
    "python_documentation",
    "setting_of",
    "train",
    "train_grid",
    "zoology",
    "zoology_models",
]
