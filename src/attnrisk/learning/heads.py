"""How far learned heads are from copies of each other (section 10)."""

import numpy as np

from .._check import of_type, refuse
from ..population.overlaps import Overlaps


def head_separation(overlaps: Overlaps) -> float:
    """Mean of `1 − Q_hh'/√(Q_hh Q_h'h')` over pairs of keys.

    Args:
        overlaps: Overlaps of two or more heads.

    Returns:
        0 for identical directions, 1 for orthogonal keys, 2 for a pair of opposite keys.
    """
    Q = np.asarray(of_type("overlaps", overlaps, Overlaps, "of type Overlaps").Q)[:-1, :-1]
    if len(Q) < 2:
        raise refuse("overlaps", f"(of {len(Q)} key vector)", "those of two heads or more")
    sizes = np.sqrt(np.maximum(np.diag(Q), 1e-300))
    rows, columns = np.triu_indices(len(Q), 1)
    return float(np.mean(1.0 - Q[rows, columns] / (sizes[rows] * sizes[columns])))
