"""`attnrisk train`: a small decoder with an attention of the catalogue or of the user."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attnrisk as ar

from .._check import refuse
from .._files import writable_folder
from . import options, render
from .command import LEARN, command
from .interrupts import RESUMED, deferred
from .judge import load_function, user_code

# As in attnrisk.trained, which takes a second to import.
_TASKS = ("recall", "needle", "text", "zoology")
_PRECISIONS = ("float32", "bfloat16")
_OWN = "by default that of the task"


def _load_attention(word: str) -> Any:
    """The function `module:function` as an attention; a name as it is."""
    from ..studies.judge.checks import check_masked
    from ..studies.judge.family import recognise

    if ":" not in word:
        return word
    found = load_function("attention", word)
    if isinstance(found, ar.AbstractAttention):
        return found
    if callable(found) and ar.General(found).takes_mask:
        check_masked(found, word)
        return ar.General(found)
    return recognise(found, word)


def _read_text(given: str) -> str:
    try:
        if not Path(given).exists() or Path(given).is_file():
            return Path(given).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise refuse("text", repr(given), "a text in UTF-8") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise refuse("text", repr(given), f"a file that can be read ({why})") from None
    raise refuse("text", repr(given), "a regular file")


@command(
    LEARN,
    "compiling",
    options.option(
        "attention",
        "A name listed by `attnrisk attentions`, gated-recurrence, linear-recurrence, or your own function "
        "of scores or of (scores, mask).",
        "softmax",
        "NAME|MODULE:FUNCTION",
    ),
    options.choice(
        "task",
        "recall: predict the value of a key. needle: the value of a marked token. text: the next character. "
        "zoology: recall with the sizes of Arora et al.",
        _TASKS,
        "recall",
    ),
    options.whole("width", "Width of the model.", 2, 2**13, "64"),
    options.whole("layers", "Number of layers.", 1, 2**7, "2"),
    options.whole("heads", "Number of heads per layer.", 1, 2**12, "1"),
    options.whole("steps", "Number of AdamW steps.", 1, 10**8, "1000"),
    options.whole("batch", "Number of sequences per step.", 1, 2**16, "64"),
    options.number("learning_rate", "Peak learning rate, > 0.", "3e-3", above=0.0, maximum=10.0),
    options.seed("the initial parameters and the batches"),
    options.whole("length", f"Number of tokens in a sequence; {_OWN}.", 1, 2**16, None),
    options.whole(
        "pairs", "Number of key-value pairs, recall only; 16 by default.", 1, 2**15, None
    ),
    options.whole("vocabulary", f"Size of the vocabulary; {_OWN}.", 2, 2**17, None),
    options.option(
        "text",
        "Training text; by default the documentation that ships with Python.",
        None,
        "FILE",
        _read_text,
    ),
    options.option(
        "checkpoint",
        "Folder for checkpoints; the same command resumes from it.",
        None,
        "FOLDER",
        lambda given: writable_folder(given, "checkpoint"),
    ),
    options.choice("precision", "Floating-point type of the activations.", _PRECISIONS, "float32"),
)
def train(args: Any) -> render.Shown:
    """Train and test a small decoder in which an attention replaces softmax.

    Example: attnrisk train --attention softplus --task recall --width 32 --steps 500 --seed 0
    """
    from ..trained import Copy, Setting, get_task
    from ..trained import train as train_copies

    sizes = {name: getattr(args, name) for name in ("length", "pairs", "vocabulary", "text")}
    task = get_task(args.task, **sizes)
    shape = {name: getattr(args, name) for name in ("width", "layers", "heads", "steps", "batch")}
    with user_code("attention", args.attention):
        attention = _load_attention(args.attention)
    setting = Setting(task, attention, **shape, precision=args.precision)
    said = "Interrupted" if args.checkpoint is None else RESUMED
    with deferred(said) as check:

        def watch(done: int, loss: float) -> None:
            args.progress(f"{args.attention}, loss {loss:.3f}", done, args.steps)
            check()

        copy = Copy(args.learning_rate, args.seed)
        with user_code("attention", args.attention):
            (found,) = train_copies(setting, [copy], checkpoint=args.checkpoint, watch=watch)
    fields = render.fields_of(found) | {"attention": args.attention, "task": args.task}
    fields |= shape | {"steps_done": len(found.losses)}
    loss = f"{found.loss:.4f} nats; {found.train_loss:.4f} at the end of the training"
    rows = {
        "accuracy": f"{found.accuracy:.4f} on test data" if found.converged else None,
        "loss": loss if math.isfinite(found.loss) else None,
        "bits per character": render.optional(found.bits_per_character, ".4f"),
        "parameters": f"{found.parameters:,}",
        "result": f"{render.result_words(found.result)} ({len(found.losses)} steps)",
        "time": f"{found.seconds:.3g} s",
    }
    title = f"{args.attention} on {args.task}, {args.layers} layers of width {args.width}"
    shown = render.Shown(fields, [render.facts(title, rows)])
    return shown.interrupted(said) if found.result == ar.Result.INTERRUPTED else shown
