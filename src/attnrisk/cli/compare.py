"""`attnrisk compare` and `attnrisk needs`: comparison of attentions with infinite and with finite data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attnrisk as ar

from .._check import Refusal, real, refuse, whole
from .._files import writable_file
from . import options, render, sheets
from .ask import heads_fields
from .command import JUDGE, LEARN, command
from .judge import load_function, rows_fields, user_code


def _signal(word: str) -> float:
    """`4logL` is 4."""
    factor, found, rest = word.partition("logL")
    if not found or rest:
        raise refuse("signal", repr(word), "a factor and logL, such as 4logL")
    return float(real("signal", factor or "1", minimum=0.0))


def _lengths(word: str) -> list[int]:
    try:
        lengths = [int(each) for each in word.split(",")]
    except ValueError:
        raise refuse("length", repr(word), "numbers of tokens, such as 10,1000") from None
    return [whole("length", each) for each in lengths]


def _picture(word: str) -> Path:
    path = writable_file(word)
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise refuse("out", repr(word), "a file that ends in .svg, .png or .pdf")
    return path


@command(
    JUDGE,
    "the comparison",
    options.argument(
        "attentions",
        "Names that `attnrisk attentions` lists, bayes-softmax, or MODULE:FUNCTION as for judge.",
        "NAME...",
        read=list,
        kind=list[str],
    ),
    options.choice("task", "As for population.", ("spiked", "max", "features"), "spiked"),
    options.option(
        "features",
        "Distribution of the shift, for --task features, its numbers in units of ν: flipped:1, one-of:1,0.5.",
        metavar="LAW",
    ),
    options.HEADS,
    options.option(
        "length", "Numbers of tokens, separated by commas.", "10,1000,100000", "L,L,...", _lengths
    ),
    options.option(
        "signal", "Signal strength ν as a multiple of log L, such as 4logL.", "4logL", read=_signal
    ),
    options.number("nu", "Instead of --signal: the same ν ≥ 0 at every length.", None, minimum=0.0),
    options.option(
        "out", "Draw a picture, and write it to this file.", None, "FILE.svg|png|pdf", _picture
    ),
)
def compare(args: Any) -> render.Shown:
    """Lowest risks of several attentions at several lengths, with their own bias and with a free bias.

    Example: attnrisk compare softmax softplus relu --length 10,1000,100000 --signal 4logL
    """
    names = "nu", "signal", "task", "progress", "features", "heads"
    how = {name: getattr(args, name) for name in names}
    with user_code("attentions", " ".join(args.attentions)):
        students = [
            word if word == ar.BayesSoftmax.name else load_function("attention", word)
            for word in args.attentions
        ]
        found = ar.compare(*students, lengths=args.length, **how)
    per_attention = len(found) // len(students)
    named = [(args.attentions[at // per_attention], each) for at, each in enumerate(found)]
    fields = [
        ({} if each.minimum is None else heads_fields(each.minimum))
        | {"attention": name, **rows_fields([each.plain], [each.biased])[0]}
        | {"length": int(each.plain.length)}
        for name, each in named
    ]
    cells = [
        (
            each.plain.length,
            f"{each.plain.nu:.4g}",
            name,
            render.with_error(each.plain.risk, sheets.DIGITS) + sheets.mark(each.plain),
            sheets.gap_cell(each.plain),
            sheets.gap_cell(each.biased) + sheets.mark(each.biased),
        )
        for name, each in sorted(named, key=lambda pair: int(pair[1].plain.length))
    ]
    notes = sheets.row_notes([each.plain for each in found], [each.biased for each in found])
    columns = "L", "ν", "attention", "risk", "gap to Bayes", "gap, free bias"
    title = f"Lowest risk with infinite data, {args.task} task"
    if args.features is not None:
        title += f", {args.features} in units of ν"
    if args.heads > 1:
        title += f", {args.heads} heads"
    files = []
    if args.out is not None:
        from ..studies.judge.picture import draw_comparison

        draw_comparison(named, args.task, args.out)
        files = [str(args.out)]
    parts = [render.table(title, columns, cells, notes), *files]
    return render.Shown({"rows": fields, "files": files}, parts)


@command(
    LEARN,
    "how much data is needed",
    options.argument(
        "name",
        "A name that `attnrisk attentions` lists, bayes-softmax, or MODULE:FUNCTION as for judge.",
        "NAME",
    ),
    options.number("risk", "The test risk to reach.", None, above=0.0),
    options.option("attention", "Instead of --risk: the attention to overtake.", None, "NAME"),
    options.task(spread=False, features=True),
    options.whole("heads", "Number of heads, up to three; several take hours.", 1, 3, "1"),
)
def needs(args: Any) -> render.Shown:
    """The α = N/D at which the tuned test risk falls below a value, or below that of another attention.

    Of several crossings, the one nearest to α = 1.

    Example: attnrisk needs softmax --risk 0.5, or: attnrisk needs softmax --attention linear
    """
    if (args.risk is None) == (args.attention is None):
        said = "missing, as is --attention" if args.risk is None else "given with --attention"
        raise refuse("risk", f"({said})", "given, or --attention, and not both")
    other = None if args.attention is None else _learner("attention", args.attention, args)
    learned = _learner("NAME", args.name, args)
    with user_code("NAME", args.name, attention=args.attention):
        found = ar.needed_data(args.task, learned, args.risk, other)
    goal = f"below {args.attention}" if other is not None else f"to a risk of {args.risk:g}"
    alpha = "—" if found.alpha is None else render.with_error(found.alpha, 3)
    if found.alpha is not None and found.alpha.kind is ar.ErrorKind.BOUND:
        alpha = f"at most {float(found.alpha) + float(found.alpha.error):g}"
    limit = "its risk minus that of the other" if other is not None else "its risk minus the target"
    rows = {
        "α": alpha,
        "answer": found.reason,
        f"{limit}, α → ∞": render.significant(found.limit, 6),
        "warning": None if found.converged else f"{render.UNCONVERGED} on the way",
    }
    fields = {
        "attention": args.name,
        "other": args.attention,
        "heads": args.heads,
        "risk": args.risk,
        "alpha_error": None,
        **render.fields_of(found, reason="result"),
    }
    title = f"Data that {args.name} needs to get {goal}, {render.task_words(args.task)}"
    return render.Shown(fields, [render.facts(title, rows)])


def _learner(argument: str, word: str, args: Any) -> ar.AbstractAttention:
    """The attention, or heads of it, if it can be learned on this task; errors name this argument."""
    from ..learning.scope import learnable, learner
    from ..studies.judge.family import recognise
    from ..studies.judge.traits import traits

    try:
        with user_code(argument, word):
            given = word if word == ar.BayesSoftmax.name else load_function("attention", word)
            if given == word:
                found = options.named_attention(word, "default", args.heads)
            else:
                one = recognise(given, word)
                if traits(one).slope == "missing":
                    allowed = (
                        "a function that jax can differentiate twice, not one of NumPy or PyTorch"
                    )
                    raise refuse("attention", repr(word), allowed)
                found = one if args.heads == 1 else ar.Heads(one, args.heads)
            learnable(args.task, learner(found))
    except Refusal as error:
        if error.parts is None or error.parts[0] != "attention":
            raise
        raise refuse(argument, *error.parts[1:]) from None
    return found
