"""Quadrature that knows nothing about attention: panels, Gaussian integrals, a Laplace transform, Sobol points."""
