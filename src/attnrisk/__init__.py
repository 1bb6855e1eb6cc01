"""attnrisk: how well can this attention find the one token that matters?"""

import jax

jax.config.update("jax_enable_x64", True)

# The imports below build constants, which must be of double precision.
from .attention import *  # noqa: E402, F403
from .estimate import Estimate as Estimate  # noqa: E402
from .population import *  # noqa: E402, F403
from .tasks import *  # noqa: E402, F403

__version__ = "0.1.0"
