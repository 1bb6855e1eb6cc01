"""Softmax of scores brought to a fixed size, as some normalise their queries and keys: it cannot learn how sharp to be.

attnrisk judge examples.unit_scores:attention
"""

import jax
import jax.numpy as jnp

import attnrisk as ar


def attention(scores):
    size = jnp.sqrt(jnp.mean(scores**2) + 1e-12)
    return jax.nn.softmax(2.0 * scores / size)


if __name__ == "__main__":
    print(ar.judge(attention, "unit scores"))
