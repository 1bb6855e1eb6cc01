"""attnrisk: how well can this attention find the one token that matters?"""

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Imports make many objects and no garbage. Not to look for it, now or ever after, saves a tenth of the time to a first
# answer.
_collecting = gc.isenabled()
gc.disable()

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)

# The imports below build constants, which must be of double precision.
from .attention import *  # noqa: E402, F403
from .estimate import Estimate as Estimate  # noqa: E402
from .population import *  # noqa: E402, F403
from .tasks import *  # noqa: E402, F403

gc.freeze()
if _collecting:
    gc.enable()

if TYPE_CHECKING:
    from .learning import *  # noqa: F403
    from .simulation import *  # noqa: F403
    from .studies.judge import judge as judge
    from .studies.judge import league as league

__version__ = "0.1.0"

# Rooms that are opened when something in them is asked for.
_ROOMS = ("learning", "simulation")
_STUDIES = ("judge", "league")  # whose dependencies take a second to import


def __getattr__(name: str) -> Any:
    if name in _STUDIES:
        return getattr(import_module(".studies.judge", __name__), name)
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    for room in _ROOMS if not name.startswith("_") else ():
        module = import_module(f".{room}", __name__)
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    rooms = [import_module(f".{room}", __name__).__all__ for room in _ROOMS]
    return sorted({*globals(), *_ROOMS, *_STUDIES, *(name for names in rooms for name in names)})
