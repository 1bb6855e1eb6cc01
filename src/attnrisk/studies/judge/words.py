"""Error messages for functions that are not attentions."""

from typing import Any, NamedTuple

from ..._check import Refusal, refuse

EXAMPLE = """\
import jax.numpy as jnp

def my_attention(scores):
    weights = jnp.exp(scores - jnp.max(scores))
    return weights / jnp.sum(weights)"""

# The same beside its PyTorch form, line by line.
TRANSLATION = """\
import jax.numpy as jnp

def my_attention(scores):                        # in PyTorch:
    weights = jnp.exp(scores - jnp.max(scores))  # torch.exp(scores - scores.max())
    return weights / jnp.sum(weights)            # weights / weights.sum()"""
TORCH_MISSING = "it is written for PyTorch, and torch is not installed"


class Wanted(NamedTuple):
    """What an argument must be, and an example of it."""

    argument: str
    allowed: str
    example: str


ATTENTION = Wanted(
    "attention",
    "a function of an array of L scores that returns an array of L weights, written with jax.numpy, NumPy or PyTorch, "
    "such as",
    EXAMPLE,
)
IN_PYTORCH = ATTENTION._replace(example=TRANSLATION)
KERNEL = Wanted(
    "kernel",
    "a function φ ≥ 0 of one score, written with jax.numpy, such as",
    """\
import jax.numpy as jnp

def my_kernel(score):
    return jnp.log1p(jnp.exp(score))""",
)
LOG_KERNEL = Wanted(
    "attention",
    "an ar.Kernel of log φ, such as",
    """\
import jax.numpy as jnp

my_attention = ar.Kernel(lambda score: jnp.log(phi(score)))
softmax = ar.Kernel(lambda score: score)  # φ = exp""",
)


def reject(name: str, reason: str, wanted: Wanted = ATTENTION) -> Refusal:
    """The exception to raise: what is wrong with the attention called `name`, and how to write one."""
    return refuse(wanted.argument, f"{name} ({reason})", f"{wanted.allowed}\n{wanted.example}")


def wrong_shape(shape: tuple[int, ...], length: int) -> str:
    """Reason to refuse a function that returns an array of this shape."""
    scores = "one score" if length == 1 else f"{length} scores"
    return f"it returns an array of shape {shape} for {scores}"


def single_precision(name: str, given: Any) -> Refusal:
    """Its weights have another type than its scores."""
    return reject(name, f"its weights are {given}, where they must be float64, as its scores are")


def untraceable(name: str, error: Exception, wanted: Wanted = ATTENTION) -> Refusal:
    """The refusal of a function that jax cannot trace."""
    import jax

    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    said = f"{type(error).__name__}: {first[:100]}"
    if isinstance(error, jax.errors.TracerArrayConversionError):
        reason = "it calls NumPy, which jax cannot trace: replace np by jnp"
        return reject(name, reason, wanted)
    if isinstance(error, jax.errors.ConcretizationTypeError):
        reason = "it needs the value of a score, for `if` or `float` for example: use jnp.where or arrays instead"
        return reject(name, reason, wanted)
    if isinstance(error, AttributeError | ImportError) or "Tensor" in first or "torch" in first:
        reason = f"it seems to be written for PyTorch or another library; it raised {said}"
        return reject(name, reason, wanted if wanted is KERNEL else IN_PYTORCH)
    return reject(name, f"it raised {said}", wanted)


def few(values: Any) -> str:
    """`[0.5, -1.2]`, at most four of them."""
    shown = ", ".join(f"{float(value):.3g}" for value in values[:4])
    return f"[{shown}{', …' if len(values) > 4 else ''}]"
