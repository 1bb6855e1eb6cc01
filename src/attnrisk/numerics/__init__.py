"""Numerical methods that know nothing about attention: quadrature, minimisers, Sobol points, small linear algebra."""
