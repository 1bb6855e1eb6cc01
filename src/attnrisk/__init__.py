"""attnrisk: how well can this attention find the one token that matters?"""

import gc
from typing import TYPE_CHECKING, Any

# Imports make many objects and no garbage: not to look for it saves a tenth of the time that they take.
_collecting = gc.isenabled()
gc.disable()

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)

# The imports below build constants, which must be of double precision.
from .attention import *  # noqa: E402, F403
from .estimate import Estimate as Estimate  # noqa: E402
from .learning import *  # noqa: E402, F403
from .population import *  # noqa: E402, F403
from .simulation import *  # noqa: E402, F403
from .tasks import *  # noqa: E402, F403

if _collecting:
    gc.enable()

if TYPE_CHECKING:
    from .studies.judge import judge as judge
    from .studies.judge import league as league

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What needs the studies, whose dependencies take a second to import."""
    if name not in ("judge", "league"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .studies import judge as room

    return getattr(room, name)
