"""A small decoder in which any attention takes the place of softmax."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._check import of_type, one_of, refuse
from ..attention import AbstractAttention, Softmax, get_attention
from .recurrence import chunked_recurrence

CONVOLUTION = 4  # width of the short convolution: a key can hold the token before its value
_ROTARY_BASE = 10_000.0  # slowest rotation, in positions per radian, as usual
GATED, UNGATED = "gated-recurrence", "linear-recurrence"
RECURRENCES = (GATED, UNGATED)

Sequences = Float[Array, "count length width"]
Mixer = AbstractAttention | str


def check_mixer(mixer: Any) -> Mixer:
    """An attention of one key vector that takes a mask, or the name of a recurrence or of an attention."""
    if isinstance(mixer, str):
        from ..attention import CATALOGUE

        one_of("attention", mixer, (*CATALOGUE, *RECURRENCES))
        return mixer if mixer in RECURRENCES else get_attention(mixer)
    attention = of_type("attention", mixer, AbstractAttention, "an attention, or a name")
    if attention.keys != 1 or not attention.takes_mask:
        allowed = "one key vector, and a function of (scores, mask): a causal prefix is a mask"
        raise refuse("attention", attention.name, allowed)
    return attention


def apply(matrix: Array, x: Array, precision: Any = None) -> Array:
    """`x @ matrix` in the precision of `x`, summed in `precision` if given.

    Over one flat axis: on CPUs, XLA is slow at derivatives that sum over two.
    """
    flat = x.reshape(-1, x.shape[-1])
    product = jnp.matmul(flat, matrix.astype(x.dtype), preferred_element_type=precision)
    return product.reshape(*x.shape[:-1], -1)


def normalise(x: Array, gain: Array | None = None) -> Array:
    """RMS norm over the last axis, computed in float32."""
    wide = x.astype(jnp.float32)
    scaled = wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)
    return (scaled if gain is None else scaled * gain).astype(x.dtype)


def rotate(x: Float[Array, "count length heads size"]) -> Array:
    """Rotary position embeddings: each pair of components is rotated by an angle proportional to the position."""
    length, _, size = x.shape[1:]
    half = size // 2
    speeds = _ROTARY_BASE ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(length, dtype=jnp.float32)[:, None, None] * speeds
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    turned = (first * cos - second * sin, first * sin + second * cos)
    return jnp.concatenate(turned, -1).astype(x.dtype)


def causal_weights(
    attention: AbstractAttention, scores: Float[Array, "count heads length length"]
) -> Array:
    """Weights of each position for all positions up to itself: `attention` of each causal prefix, in float32."""
    order = jnp.arange(scores.shape[-1])
    prefixes = order[:, None] >= order
    rows = jax.vmap(attention)
    over_heads = jax.vmap(rows, in_axes=(0, None))
    return jax.vmap(over_heads, in_axes=(0, None))(scores, prefixes).astype(jnp.float32)


def _matrix(key: Array, rows: int, columns: int, scale: float = 1.0) -> Array:
    return jax.random.normal(key, (rows, columns), jnp.float32) * (scale / math.sqrt(rows))


class Mixing(eqx.Module):
    """Queries, keys and values, each with a short causal convolution, and an attention or a recurrence on them.

    The score of an attention is `q·k/√size + bias`, with a learned bias per head; without it only some attentions could
    shift their scores. Element-wise weights are multiplied by `1/√length`, so that a sum of `length` values initially
    has the size of one value; the values absorb this constant. Outputs of a recurrence have an RMS norm, because they
    have no other normalisation. The gated one has gates `f = σ(gate + bias)` and keys `1 - f`, as in HGRN2. Its biases
    initially give memories `1/(1 - f)` from 2 to 4 · `length` tokens (Tallec and Ollivier, arXiv 1804.11188); without
    them a recall over many tokens is not learned in thousands of steps.
    """

    projections: Float[Array, "width three_width"]
    filters: Float[Array, "convolution three_width"]
    output: Float[Array, "width width"]
    bias: Float[Array, " heads"] | Float[Array, "heads size"]
    mixer: Any = eqx.field(static=True)
    heads: int = eqx.field(static=True)
    gain: float = eqx.field(static=True)

    def __init__(
        self,
        key: Array,
        width: int,
        heads: int,
        mixer: Mixer,
        length: int,
        layers: int,
    ):
        for_projections, for_filters, for_output = jax.random.split(key, 3)
        self.projections = _matrix(for_projections, width, 3 * width)
        shape = CONVOLUTION, 3 * width
        spread = math.sqrt(3.0 / CONVOLUTION)  # of uniform numbers whose sum of squares is one
        self.filters = jax.random.uniform(for_filters, shape, jnp.float32, -spread, spread)
        self.output = _matrix(for_output, width, width, 1.0 / math.sqrt(2.0 * layers))
        if mixer == GATED:
            memories = jnp.geomspace(2.0, 4.0 * length, width // heads, dtype=jnp.float32)
            self.bias = jnp.tile(jnp.log(memories - 1.0), (heads, 1))
        else:
            self.bias = jnp.zeros(heads, jnp.float32)
        self.mixer, self.heads = mixer, heads
        is_elementwise = isinstance(mixer, AbstractAttention) and mixer.family == "element-wise"
        self.gain = 1.0 / math.sqrt(length) if is_elementwise else 1.0

    def __call__(self, x: Sequences) -> Sequences:
        count, length, _ = x.shape
        projected = apply(self.projections, x)
        padded = jnp.pad(projected, ((0, 0), (CONVOLUTION - 1, 0), (0, 0)))
        filters = self.filters.astype(x.dtype)
        lags = [filters[lag] * padded[:, lag : lag + length] for lag in range(CONVOLUTION)]
        parts = jnp.split(lags[0] + lags[1] + lags[2] + lags[3], 3, -1)
        q, k, v = (part.reshape(count, length, self.heads, -1) for part in parts)
        mixed = (self._recur if isinstance(self.mixer, str) else self._attend)(q, k, v)
        return apply(self.output, mixed.astype(x.dtype).reshape(x.shape))

    def _attend(self, q: Array, k: Array, v: Array) -> Array:
        if isinstance(self.mixer, Softmax):
            q, k = rotate(q), rotate(k)
        scores = jnp.einsum("nihc,njhc->nhij", q, k, preferred_element_type=jnp.float32)
        scores = scores / math.sqrt(q.shape[-1]) + self.bias[:, None, None]
        weights = (self.gain * causal_weights(self.mixer, scores)).astype(v.dtype)
        return jnp.einsum("nhij,njhc->nihc", weights, v)

    def _recur(self, q: Array, k: Array, v: Array) -> Array:
        log_decay = None
        if self.mixer == GATED:
            gates = k.astype(jnp.float32) + self.bias
            log_decay, k = jax.nn.log_sigmoid(gates), jax.nn.sigmoid(-gates).astype(v.dtype)
        over_heads = jax.vmap(chunked_recurrence, in_axes=1, out_axes=1)
        return normalise(jax.vmap(over_heads)(q, k, v, log_decay))


class Block(eqx.Module):
    """Pre-norm mixing layer, then a pre-norm MLP with one hidden layer, both with residual connections."""

    norms: Float[Array, "2 width"]
    mixing: Mixing
    rise: Float[Array, "width hidden"]
    fall: Float[Array, "hidden width"]

    def __init__(self, key: Array, width: int, layers: int, **more: Any):
        for_mixing, for_rise, for_fall = jax.random.split(key, 3)
        self.norms = jnp.ones((2, width), jnp.float32)
        self.mixing = Mixing(for_mixing, width, layers=layers, **more)
        self.rise = _matrix(for_rise, width, 4 * width)
        self.fall = _matrix(for_fall, 4 * width, width, 1.0 / math.sqrt(2.0 * layers))

    def __call__(self, x: Sequences) -> Sequences:
        x = x + self.mixing(normalise(x, self.norms[0]))
        hidden = jax.nn.gelu(apply(self.rise, normalise(x, self.norms[1])))
        return x + apply(self.fall, hidden)


class Decoder(eqx.Module):
    """Token embedding, `layers` blocks, and logits from the same embedding.

    Parameters are float32; `precision` is that of the activations. Tokens are embedded by a matrix product, whose
    derivative is deterministic on a GPU, unlike that of an index.
    """

    embedding: Float[Array, "tokens width"]
    blocks: tuple[Block, ...]
    norm: Float[Array, " width"]
    precision: str = eqx.field(static=True)

    def __init__(
        self,
        key: Array,
        tokens: int,
        length: int,
        attention: Any,
        width: int = 64,
        layers: int = 2,
        heads: int = 1,
        precision: str = "float32",
    ):
        mixer = check_mixer(attention)
        self.precision = precision
        for_embedding, *for_blocks = jax.random.split(key, 1 + layers)
        self.embedding = jax.random.normal(for_embedding, (tokens, width), jnp.float32)
        self.embedding = self.embedding / math.sqrt(width)  # logits begin with a spread of one
        shape: Any = {"heads": heads, "mixer": mixer, "length": length}
        self.blocks = tuple(Block(each, width, layers, **shape) for each in for_blocks)
        self.norm = jnp.ones(width, jnp.float32)

    def __call__(
        self, tokens: Int[Array, "count length"], positions: Int[Array, "count queries"]
    ) -> Float[Array, "count queries tokens"]:
        """Logits of the token that follows each of the `positions`, in float32."""
        table = self.embedding.astype(self.precision)
        x = apply(table, jax.nn.one_hot(tokens, table.shape[0], dtype=table.dtype))
        x = x * math.sqrt(table.shape[1])
        for block in self.blocks:
            x = block(x)
        read = normalise(jnp.take_along_axis(x, positions[..., None], 1), self.norm)
        return apply(table.T, read, jnp.float32)

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(self, eqx.is_inexact_array)))
