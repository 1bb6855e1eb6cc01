"""attnrisk: exact risks of attention mechanisms on single-location regression.

Importing this package enables double precision in JAX (`jax_enable_x64`) for the whole program and, if JAX was not
imported before, for child processes; the start of the API reference describes the consequences for programs written
for single precision. Nothing else is changed, and JAX itself is imported when a name is first used.
"""

import os
import sys
from importlib import import_module

TYPE_CHECKING = False  # `typing` takes most of the time of this import, which Ctrl-C should not end with a traceback

# The modules below build constants of double precision: jax has to know before they are imported.
if "jax" in sys.modules:
    sys.modules["jax"].config.update("jax_enable_x64", True)
else:
    os.environ["JAX_ENABLE_X64"] = "1"

if TYPE_CHECKING:
    from typing import Any

    from ._compile_cache import enable_compile_cache as enable_compile_cache
    from ._results import ErrorKind as ErrorKind
    from ._results import Estimate as Estimate
    from ._results import Result as Result
    from ._results import record as record
    from .attention import *  # noqa: F403
    from .flow import *  # noqa: F403
    from .learning import *  # noqa: F403
    from .marion import *  # noqa: F403
    from .population import *  # noqa: F403
    from .simulation import *  # noqa: F403
    from .studies.judge import judge as judge
    from .studies.judge import league as league
    from .tasks import *  # noqa: F403

__version__ = "0.1.0"

# Packages all of whose names are names of this one.
_WHOLE = ("tasks", "attention", "population")
# Those that only some programs need, each imported when one of its names is asked for.
_LAZY = {
    "_compile_cache": ("enable_compile_cache",),
    "_results": ("ErrorKind", "Estimate", "Result", "record"),
    "flow": (
        "Basins",
        "Flow",
        "OnlineSGD",
        "Stationary",
        "basins",
        "certify",
        "feature_times",
        "gradient_flow",
        "largest_step",
        "mismatched_minimum",
        "online_sgd",
        "random_starts",
        "swapped_starts",
    ),
    "learning": (
        "ERMAsymptotics",
        "FixedPoint",
        "Needs",
        "OptimalAsymptotics",
        "Ridge",
        "Thresholds",
        "Trajectory",
        "erm_asymptotics",
        "head_separation",
        "needed_data",
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
    "studies.judge": ("compare", "from_numpy", "from_torch", "judge", "league"),
}
_PACKAGE = {name: package for package, names in _LAZY.items() for name in names}


def __getattr__(name: str) -> "Any":
    if name in _PACKAGE:
        return getattr(import_module(f".{_PACKAGE[name]}", __name__), name)
    if name in _LAZY or name in _WHOLE:
        return import_module(f".{name}", __name__)
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    packages = [import_module(f".{package}", __name__) for package in _WHOLE]
    if name == "__all__":
        return [*_PACKAGE, *(each for package in packages for each in package.__all__)]
    for package in packages:
        if name in package.__all__:
            return getattr(package, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
