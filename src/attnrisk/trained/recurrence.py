"""Recurrences with a state of fixed size, `S_t = diag(f_t) S_{t-1} + k_t v_tᵀ`, read by `o_t = S_tᵀ q_t`, in chunks."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Long enough for matrix products; the decays within a chunk cost `CHUNK` exponentials for each entry of a key.
CHUNK = 16


def chunked_recurrence(
    queries: Float[Array, "length keys"],
    keys: Float[Array, "length keys"],
    values: Float[Array, "length values"],
    log_decay: Float[Array, "length keys"] | None = None,
) -> Float[Array, "length values"]:
    """Outputs `o_t` of the recurrence, in float32, with `f_t = e^{log_decay}`, `log_decay ≤ 0` (no decay if not given).

    Only decays from an earlier to a later position are formed, as `exp` of a number ≤ 0. The usual factors `e^{Σ log
    f}` and `e^{-Σ log f}` of queries and keys overflow where a gate closes. State and sums are in float32.
    """
    length, width = keys.shape
    chunks = -(-length // CHUNK)

    def cut(rows: Array) -> Array:
        padded = jnp.pad(rows, ((0, chunks * CHUNK - length), (0, 0)))
        return padded.reshape(chunks, CHUNK, rows.shape[1])

    q, k, v = cut(queries), cut(keys), cut(values)
    order = jnp.arange(CHUNK)
    is_earlier = order[:, None] >= order
    if log_decay is None:
        weights = jnp.where(is_earlier, _product("nik,njk->nij", q, k), 0.0)
        from_start, to_end, kept = q, k, jnp.ones((chunks, width), jnp.float32)
    else:
        total = jnp.cumsum(cut(log_decay).astype(jnp.float32), 1)
        between = total[:, :, None] - total[:, None]
        decay = jnp.exp(jnp.where(is_earlier[..., None], between, -jnp.inf))
        weights = jnp.sum(q[:, :, None] * k[:, None] * decay, -1)
        from_start, to_end = q * jnp.exp(total), k * jnp.exp(total[:, -1:] - total)
        kept = jnp.exp(total[:, -1])
    added = _product("njk,njv->nkv", to_end, v)

    def step(state: Array, chunk: tuple[Array, Array]) -> tuple[Array, Array]:
        kept, added = chunk
        return kept[:, None] * state + added, state

    start = jnp.zeros((width, values.shape[1]), jnp.float32)
    _, states = jax.lax.scan(step, start, (kept, added))
    outputs = _product("nij,njv->niv", weights, v) + _product("nik,nkv->niv", from_start, states)
    return outputs.reshape(chunks * CHUNK, -1)[:length]


def _product(indices: str, left: Array, right: Array) -> Array:
    """A product that is summed in float32."""
    return jnp.einsum(indices, left, right, preferred_element_type=jnp.float32)
