"""A kernel that stands in for the exponential: φ = (1 + χ/8)⁸, which needs only products.

attnrisk judge examples.power_kernel:attention
"""

import jax.numpy as jnp

import attnrisk as ar


def attention(scores):
    kernel = (1.0 + scores / 8.0) ** 8
    return kernel / jnp.sum(kernel)


if __name__ == "__main__":
    print(ar.judge(attention, "(1 + χ/8)⁸ / Σ"))
