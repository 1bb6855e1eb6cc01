"""Experiments at several dimensions against the limit of infinite dimension, in standard errors."""

import numpy as np


def limit(dims, runs):
    """The constant in `constant + slope/D`, fitted to runs at several dimensions, and its standard error.

    `runs[i]` holds independent measurements at dimension `dims[i]`.
    """
    means = np.array([np.mean(each) for each in runs])
    errors = np.array([np.std(each, ddof=1) / np.sqrt(len(each)) for each in runs])
    design = np.stack([np.ones(len(dims)), 1.0 / np.asarray(dims, float)], 1) / errors[:, None]
    covariance = np.linalg.inv(design.T @ design)
    return (covariance @ design.T @ (means / errors))[0], np.sqrt(covariance[0, 0])


def distance(dims, runs, theory):
    """The difference between their limit and the theory's `Estimate`, over the error of both."""
    value, error = limit(dims, runs)
    return (value - float(theory)) / np.hypot(error, float(theory.error))
