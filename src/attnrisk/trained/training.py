"""Training by AdamW with warm-up and cosine decay: several copies at once, and checkpoints that resume."""

import hashlib
import inspect
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from .._check import of_type, one_of, real, refuse, whole
from .._files import replacement
from .._results import AbstractResult, Result
from .model import Decoder, check_mixer
from .tasks import SPLITS, AbstractTokenTask, Batch

LARGEST_SEED = 2**32 - 1
LARGEST_WIDTH, LARGEST_LAYERS, LARGEST_BATCH, LARGEST_STEPS = 2**13, 2**7, 2**16, 10**8
PRECISIONS = ("float32", "bfloat16")
# Sequences of validation and of test data: a standard error of 2 % of an accuracy, or less.
HELD_OUT = 512
_STRIDE = 25  # steps between two looks at the interrupt and the checkpoint
_WARMUP = 0.1  # of the steps
_FILE = "training.eqx"
# AdamW as is usual for small decoders.
_OPTIMISER = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.scale_by_adam(0.9, 0.98),
    optax.add_decayed_weights(0.1),
)

Watch = Callable[[int, float], None]  # the steps done and the last training loss


class Copy(NamedTuple):
    """Learning rate and seed of one of several models that are trained together."""

    learning_rate: float
    seed: int


@dataclass(frozen=True)
class Setting:
    """Settings that models trained together share. `attention` is an attention or a name."""

    task: AbstractTokenTask
    attention: Any
    width: int = 64
    layers: int = 2
    heads: int = 1
    steps: int = 1000
    batch: int = 64
    precision: str = "float32"

    def __post_init__(self) -> None:
        of_type("task", self.task, AbstractTokenTask, "a task of attnrisk.trained")
        check_mixer(self.attention)
        whole("layers", self.layers, 1, LARGEST_LAYERS)
        whole("heads", self.heads)
        if whole("width", self.width, 2, LARGEST_WIDTH) % (2 * self.heads):
            raise refuse("width", self.width, f"a multiple of {2 * self.heads}, twice the heads")
        whole("steps", self.steps, 1, LARGEST_STEPS)
        whole("batch", self.batch, 1, LARGEST_BATCH)
        one_of("precision", self.precision, PRECISIONS)

    def start(self, key: Array) -> Decoder:
        """A model with random parameters."""
        shape = self.width, self.layers, self.heads, self.precision
        task = self.task
        return Decoder(key, task.tokens, task.sequence_length, self.attention, *shape)


class Trained(AbstractResult):
    """A trained model, with loss and accuracy on test data, and on validation data for model selection."""

    recorded: ClassVar[tuple[str, ...]] = (
        *("accuracy", "loss", "bits_per_character", "validation_accuracy", "validation_loss"),
        *("train_loss", "parameters", "learning_rate", "seed", "seconds", "result", "converged"),
    )

    model: Decoder
    losses: np.ndarray  # of every training step
    learning_rate: float
    seed: int
    accuracy: float
    loss: float
    bits_per_character: float | None  # the test loss in bits, of a text
    validation_accuracy: float
    validation_loss: float
    seconds: float  # its share of the time of all copies

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        return self.model.parameters

    @property
    def train_loss(self) -> float:
        """Mean loss over the last training steps."""
        return float(np.mean(self.losses[-_STRIDE:]))


_State = tuple[Any, Any]  # parameters and moments, with an axis of copies


def train(
    setting: Setting,
    copies: Sequence[Copy] = (Copy(3e-3, 0),),
    *,
    checkpoint: str | Path | None = None,
    watch: Watch | None = None,
) -> list[Trained]:
    """Train one decoder for each of the `copies`, in parallel.

    A copy trained alone gives the same result, up to rounding. On one device the same call is bitwise reproducible.
    With a `checkpoint` folder the state is saved there, and a call with the same arguments resumes from it, with the
    same bits. `watch` is called during training; if it raises `KeyboardInterrupt`, the models so far are returned and
    marked as interrupted.
    """
    copies = list(copies)
    for each in copies:
        real("learning_rate", each.learning_rate, above=0.0, maximum=10.0)
        whole("seed", each.seed, 0, LARGEST_SEED)
    begun = time.perf_counter()
    keys = jnp.stack([jax.random.key(each.seed) for each in copies])
    for_models, for_data = jax.vmap(jax.random.split, out_axes=1)(keys)
    models = _start(setting, for_models)
    parameters, skeleton = eqx.partition(models, eqx.is_inexact_array)
    state = parameters, jax.vmap(_OPTIMISER.init)(parameters)
    rates = jnp.asarray([each.learning_rate for each in copies], jnp.float32)

    file = None if checkpoint is None else Path(checkpoint, _FILE)
    address = _address(setting, copies)
    done, losses, result = 0, np.zeros((len(copies), setting.steps), np.float32), Result.FINISHED
    if file is not None and file.is_file():
        done, losses, state = _load(file, address, losses, state)
    while done < setting.steps:
        count = min(_STRIDE, setting.steps - done)
        steps = jnp.int32(done), jnp.int32(count)
        state, new = _advance(setting, skeleton, state, rates, for_data, *steps)
        losses[:, done : done + count] = np.asarray(new)[:, :count]
        done += count
        if file is not None:
            _save(file, address, done, losses, state)
        try:
            if watch is not None:
                watch(done, float(np.median(losses[:, done - 1])))
        except KeyboardInterrupt:
            result = Result.INTERRUPTED
            break
    drawn = (eqx.filter_jit(setting.task.held_out)(split, HELD_OUT) for split in SPLITS[1:])
    given = setting.batch, state[0], skeleton
    validation, test = (np.asarray(_measure(held, *given)) for held in drawn)
    seconds = (time.perf_counter() - begun) / len(copies)
    trained = []
    for at, each in enumerate(copies):
        own = jax.tree.map(lambda leaf: leaf[at], state[0])  # noqa: B023
        loss, accuracy = test[at].tolist()
        fine = np.all(np.isfinite(losses[at])) and math.isfinite(loss)
        trained.append(
            Trained(
                model=eqx.combine(own, skeleton),
                losses=losses[at, :done],
                learning_rate=each.learning_rate,
                seed=each.seed,
                accuracy=accuracy,
                loss=loss,
                bits_per_character=loss / math.log(2.0) if setting.task.name == "text" else None,
                validation_accuracy=float(validation[at, 1]),
                validation_loss=float(validation[at, 0]),
                seconds=seconds,
                result=result if fine else Result.DIVERGED,
            )
        )
    return trained


@eqx.filter_jit
def _start(setting: Setting, keys: Array) -> Decoder:
    """The untrained models of all copies."""
    return eqx.filter_vmap(setting.start)(keys)


@eqx.filter_jit
@eqx.filter_vmap(in_axes=(None, None, 0, 0, 0, None, None))
def _advance(
    setting: Setting,
    skeleton: Decoder,
    state: _State,
    rate: Array,
    key: Array,
    first: Array,
    count: Array,
) -> tuple[_State, Array]:
    """`count` steps of all copies from the step `first` on, and their losses."""

    def step(at: Array, carry: tuple[_State, Array]) -> tuple[_State, Array]:
        (parameters, moments), losses = carry
        drawn = setting.task.batch(jax.random.fold_in(key, first + at), setting.batch)

        def loss_of(parameters: Any) -> Array:
            return losses_of(eqx.combine(parameters, skeleton), drawn)[0]

        loss, slopes = jax.value_and_grad(loss_of)(parameters)
        slopes, moments = _OPTIMISER.update(slopes, moments, parameters)
        pace = rate * _schedule(first + at, setting.steps)
        parameters = jax.tree.map(lambda own, slope: own - pace * slope, parameters, slopes)
        return (parameters, moments), losses.at[at].set(loss)

    # The number of steps is no constant, so that the last ones need no compilation of their own.
    none = jnp.zeros(_STRIDE, jnp.float32)
    return jax.lax.fori_loop(jnp.int32(0), count, step, (state, none))


def _schedule(step: Array, steps: int) -> Array:
    """A linear rise to 1, then a cosine to 0."""
    rise = max(1.0, _WARMUP * steps)
    now = step.astype(jnp.float32) + 1.0
    fall = 0.5 + 0.5 * jnp.cos(jnp.pi * (now - rise) / max(1.0, steps - rise))
    return jnp.minimum(now / rise, fall).astype(jnp.float32)


def losses_of(model: Decoder, batch: Batch) -> tuple[Array, Array]:
    """Mean cross-entropy in nats, and accuracy, over targets of weight 1."""
    logits = model(batch.tokens, batch.positions)
    chosen = jnp.take_along_axis(logits, batch.targets[..., None], -1)[..., 0]
    nats = jax.nn.logsumexp(logits, -1) - chosen
    right = (jnp.argmax(logits, -1) == batch.targets).astype(jnp.float32)
    total = jnp.sum(batch.weights)
    return jnp.sum(batch.weights * nats) / total, jnp.sum(batch.weights * right) / total


@eqx.filter_jit
def _measure(held: Batch, batch: int, parameters: Any, skeleton: Decoder) -> Array:
    """Loss and accuracy of each copy on held-out sequences, a batch at a time."""
    count = held.tokens.shape[0]
    size = min(batch, count)

    def cut(rows: Array) -> Array:
        """Batches, the last one padded with sequences of weight 0."""
        padded = jnp.pad(rows, ((0, -count % size), (0, 0)))
        return padded.reshape(-1, size, rows.shape[1])

    parts = jax.tree.map(cut, held)

    def measured(parameters: Any) -> Array:
        model = eqx.combine(parameters, skeleton)
        found = jax.lax.map(lambda part: jnp.stack(losses_of(model, part)), parts)
        shares = jnp.sum(parts.weights, (1, 2))
        return shares @ found / jnp.sum(shares)

    return jax.vmap(measured)(parameters)


def _address(setting: Setting, copies: Sequence[Copy]) -> str:
    """A hash of what a training depends on."""
    task = [setting.task.name, *(getattr(setting.task, each.name) for each in fields(setting.task))]
    own = [getattr(setting, each.name) for each in fields(setting) if each.name != "task"]
    content = [task, own, [tuple(each) for each in copies], _source(setting.attention)]
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _source(attention: Any) -> str:
    """The source of a user's function, which its name does not tell."""
    function = getattr(attention, "function", None)
    if function is None:
        return ""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # it has none: it is built in, or a callable object
        return repr(function)


def _save(file: Path, address: str, done: int, losses: np.ndarray, state: _State) -> None:
    """A line of JSON, then the arrays."""
    with replacement(file, "checkpoint") as unfinished, unfinished.open("wb") as opened:
        opened.write((json.dumps({"address": address, "done": done}) + "\n").encode())
        eqx.tree_serialise_leaves(opened, (losses, state))


def _load(
    file: Path, address: str, losses: np.ndarray, state: _State
) -> tuple[int, np.ndarray, _State]:
    """What was kept; refused where it is of another training, or damaged."""
    with file.open("rb") as opened:
        try:
            head = json.loads(opened.readline())
            kept, done = head["address"], head["done"]
        except (ValueError, KeyError, TypeError):
            raise refuse("checkpoint", repr(str(file)), "a file of attnrisk train") from None
        if kept != address:
            allowed = "of a training with the same arguments, or a free folder"
            raise refuse("checkpoint", repr(str(file)), allowed)
        try:
            return done, *eqx.tree_deserialise_leaves(opened, (losses, state))
        except (RuntimeError, ValueError, EOFError) as error:
            whole_file = f"a whole file ({type(error).__name__})"
            raise refuse("checkpoint", repr(str(file)), whole_file) from None
