"""attnrisk: how well can this attention find the one token that matters?

Importing this package switches jax to double precision for the whole program (`jax_enable_x64`); the top of the API
documentation says what that does to a program written for single precision. Nothing else is changed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import jax

jax.config.update("jax_enable_x64", True)

# The imports below build constants, which must be of double precision.
from ._results import ErrorKind, Estimate, Result, record  # noqa: E402
from .attention import *  # noqa: E402, F403
from .attention import __all__ as _attention  # noqa: E402
from .population import *  # noqa: E402, F403
from .population import __all__ as _population  # noqa: E402
from .tasks import *  # noqa: E402, F403
from .tasks import __all__ as _tasks  # noqa: E402

if TYPE_CHECKING:
    from .flow import *  # noqa: F403
    from .learning import *  # noqa: F403
    from .marion import *  # noqa: F403
    from .simulation import *  # noqa: F403
    from .studies.judge import judge as judge
    from .studies.judge import league as league

__version__ = "0.1.0"

# Packages that are imported when one of their names is asked for.
_LAZY = {
    "flow": (
        "Basins",
        "Flow",
        "Stationary",
        "basins",
        "certify",
        "gradient_flow",
        "mismatched_minimum",
        "random_starts",
        "swapped_starts",
    ),
    "learning": (
        "ERMAsymptotics",
        "FixedPoint",
        "OptimalAsymptotics",
        "Ridge",
        "Thresholds",
        "Trajectory",
        "erm_asymptotics",
        "optimal_asymptotics",
        "optimal_thresholds",
        "state_evolution",
        "tuned_erm_asymptotics",
    ),
    "marion": (
        "ConstantTemperature",
        "DecayingTemperature",
        "UnitPair",
        "manifold_starts",
        "projected_descent",
        "sphere_starts",
        "stochastic_projected_descent",
    ),
    "simulation": (
        "AMPFit",
        "AbstractDataset",
        "Dataset",
        "ERMFit",
        "PRECISIONS",
        "SGDPath",
        "StreamedDataset",
        "fit_amp",
        "fit_erm",
        "fit_sgd",
        "load_dataset",
        "measure_risk",
        "sample",
        "stream",
    ),
    "studies.judge": ("judge", "league"),
}
_PACKAGE = {name: package for package, names in _LAZY.items() for name in names}

__all__ = [
    "ErrorKind",
    "Estimate",
    "Result",
    "record",
    *_attention,
    *_population,
    *_tasks,
    *_PACKAGE,
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGE:
        return getattr(import_module(f".{_PACKAGE[name]}", __name__), name)
    if name in _LAZY:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
