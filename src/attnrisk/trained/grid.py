"""The models of figure 1 and of the recall benchmark of Arora et al., with several learning rates and seeds each.

A model is a dictionary of plain values: it can be a question, a line of a CSV file, or a job of another process.
"""

from itertools import product
from typing import Any

from .._results import record
from .model import GATED, UNGATED
from .tasks import ZOOLOGY_SIZES, Needle, get_task
from .training import Copy, Setting, Watch, train

Model = dict[str, Any]

ATTENTIONS = (
    *("softmax", "softplus", "elu+1", "relu", "relu2", "taylor-2", "sigmoid", "erf", "linear"),
    *(GATED, UNGATED),
)
_QUICK_ATTENTIONS = ("softmax", "softplus", "linear", UNGATED)
_WIDTHS, _QUICK_WIDTHS = (16, 32, 64, 128), (8, 16)
_SIZES: dict[str, Model] = {
    "recall": {"pairs": 16, "vocabulary": 128, "length": 128, "steps": 1000, "batch_size": 64},
    "needle": {"vocabulary": 16, "length": 64, "steps": 500, "batch_size": 256},
    "text": {"length": 128, "steps": 1000, "batch_size": 64},
}
_QUICK_SIZES: dict[str, Model] = {
    "recall": {"pairs": 4, "vocabulary": 32, "length": 32, "steps": 200, "batch_size": 16},
    "text": {"length": 32, "steps": 200, "batch_size": 16},
}
_RATES, _QUICK_RATES = (1e-3, 3e-3, 1e-2), (3e-3, 1e-2, 3e-2)  # few steps need larger ones
_SEEDS = (0, 1, 2)
_ZOOLOGY_ATTENTIONS = ("softmax", "softplus", "linear", "taylor-2")
_ZOOLOGY_RATES = (1e-4, 4.6e-4, 2.2e-3, 1e-2)
_ZOOLOGY_TOKENS = 2**15  # in each step
_ZOOLOGY_WIDTHS = (64, 128)
# Four times as many pairs as in figure 1: an attention that only just separates 16 keys does not separate these.
_LONG_RECALL: Model = {
    "task": "recall",
    **{"pairs": 64, "vocabulary": 512, "length": 512, "steps": 1000, "batch_size": 32},
    **{"learning_rates": _RATES, "seeds": _SEEDS},
}
_LONG_RECALL_WIDTHS = (16, 32)
_LONG_TRAINING_ATTENTIONS = ("relu", "relu2", "taylor-2")


def figure1_models(quick: bool) -> list[Model]:
    """All models of figure 1, small ones first; in the quick form, which takes minutes, without the needle."""
    widths, attentions = (_QUICK_WIDTHS, _QUICK_ATTENTIONS) if quick else (_WIDTHS, ATTENTIONS)
    tasks = _QUICK_SIZES if quick else _SIZES
    return [figure1_model(quick, *each) for each in product(widths, tasks, attentions)]


def figure1_model(quick: bool, width: int, task: str, attention: str) -> Model:
    sizes = (_QUICK_SIZES if quick else _SIZES)[task]
    rates = _QUICK_RATES if quick else _RATES
    grid = {"learning_rates": rates, "seeds": _SEEDS}
    return {"attention": attention, "task": task, "width": width, **sizes, **grid}


def zoology_models(steps: int) -> list[Model]:
    """The settings of Arora et al. with the best of four learning rates, most relevant first."""
    lengths = [length for length, _ in ZOOLOGY_SIZES]
    return [
        {
            "attention": attention,
            "task": "zoology",
            "width": width,
            "length": length,
            "steps": steps,
            "batch_size": _ZOOLOGY_TOKENS // length,
            "precision": "bfloat16",
            "learning_rates": _ZOOLOGY_RATES,
            "seeds": (0,),
        }
        for attention, width, length in product(_ZOOLOGY_ATTENTIONS, _ZOOLOGY_WIDTHS, lengths)
    ]


def long_recall_models() -> list[Model]:
    """Recall of more pairs than in figure 1."""
    each = product(_LONG_RECALL_WIDTHS, ATTENTIONS)
    return [{"attention": attention, "width": width} | _LONG_RECALL for width, attention in each]


def long_training_models() -> list[Model]:
    """Models of figure 1 that do not answer every query, trained four times as long."""
    model = figure1_model(False, _WIDTHS[0], "recall", "") | {"steps": 4000}
    return [model | {"attention": attention} for attention in _LONG_TRAINING_ATTENTIONS]


def setting_of(model: Model) -> Setting:
    """Settings shared by the training runs of a model."""
    sizes = {name: model.get(name) for name in ("length", "pairs", "vocabulary")}
    shape = {
        name: model[name] for name in ("width", "layers", "steps", "precision") if name in model
    }
    batch = {"batch": model["batch_size"]} if "batch_size" in model else {}
    return Setting(get_task(model["task"], **sizes), model["attention"], **shape, **batch)


def train_grid(model: Model, watch: Watch | None = None) -> list[dict[str, Any]]:
    """Train all pairs of a learning rate and a seed together; one record for each.

    `best_accuracy` is that of the Bayes predictor, if it is known.
    """
    setting = setting_of(model)
    copies = [Copy(rate, seed) for rate in model["learning_rates"] for seed in model["seeds"]]
    best = setting.task.best_accuracy() if isinstance(setting.task, Needle) else None
    return [record(each) | {"best_accuracy": best} for each in train(setting, copies, watch=watch)]
