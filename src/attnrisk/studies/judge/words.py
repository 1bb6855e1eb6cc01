"""What to say to someone whose function is not an attention that can be judged."""

from typing import Any

from ..._check import Refusal, refuse

EXAMPLE = """\
import jax.numpy as jnp

def my_attention(scores):
    weights = jnp.exp(scores - jnp.max(scores))
    return weights / jnp.sum(weights)"""

# The same line by line, for whom PyTorch is the first language.
TRANSLATION = """\
import jax.numpy as jnp

def my_attention(scores):                        # in PyTorch:
    weights = jnp.exp(scores - jnp.max(scores))  # torch.exp(scores - scores.max())
    return weights / jnp.sum(weights)            # weights / weights.sum()"""
TORCH_MISSING = "it is written for PyTorch, and torch is not installed"

_ALLOWED = "a function of an array of L scores that returns an array of L weights, written with jax.numpy, such as"


def reject(name: str, reason: str, example: str = EXAMPLE, argument: str = "attention") -> Refusal:
    """The exception to raise: what is wrong with the attention called `name`, and how to write one."""
    return refuse(argument, f"{name} ({reason})", f"{_ALLOWED}\n{example}")


def single_precision(name: str, given: Any) -> Refusal:
    """Its weights have another type than its scores."""
    return reject(name, f"its weights are {given}, where they must be float64, as its scores are")


def untraceable(name: str, error: Exception) -> Refusal:
    """Why a function that jax could not follow is refused."""
    import jax

    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    said = f"{type(error).__name__}: {first[:100]}"
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return reject(name, "it calls NumPy, which jax cannot follow: put jnp in place of np")
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return reject(
            name, "it looks at a number in Python, as `if` does: put jnp.where in its place"
        )
    if isinstance(error, AttributeError | ImportError) or "Tensor" in first or "torch" in first:
        reason = f"it seems to be written for PyTorch or another library; it raised {said}"
        return reject(name, reason, TRANSLATION)
    return reject(name, f"it raised {said}")


def few(values: Any) -> str:
    """`[0.5, -1.2]`, at most four of them."""
    shown = ", ".join(f"{float(value):.3g}" for value in values[:4])
    return f"[{shown}{', …' if len(values) > 4 else ''}]"
