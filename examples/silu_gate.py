"""A gate on each token, χ·sigmoid(χ), that looks at no other: element-wise, not normalised.

attnrisk judge examples.silu_gate:attention
"""

import jax

import attnrisk as ar


def attention(scores):
    return jax.nn.silu(scores)


if __name__ == "__main__":
    print(ar.judge(attention, "silu"))
