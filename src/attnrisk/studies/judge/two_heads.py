"""Two averaged heads of an attention on a task with a shift of random sign (section 10)."""

from ..._results import ErrorKind, Estimate
from ...attention import FREE_BIAS, get_heads
from ...population.continuity import is_continuous
from ...population.plan import has_exact_heads
from ..execute import Ask
from ..head_questions import AbstractFeatureQuestion, FeatureBayes, LeastHeads
from ..question import is_converged

FEATURES, LENGTH = "flipped:9", "10"
HEADING = "as two heads on flipped needles"


def questions(name: str) -> list[AbstractFeatureQuestion]:
    """The lowest risk of two heads with free biases, and the Bayes risk; nothing for a discontinuous attention."""
    two = LeastHeads(FEATURES, LENGTH, name, 2, certify=False, random_starts=2, bias=FREE_BIAS)
    heads = get_heads(name, 2, FREE_BIAS)
    if not has_exact_heads(two.problem, heads) and not is_continuous(heads, int(LENGTH)):
        return []
    return [two, FeatureBayes(FEATURES, LENGTH)]


def gap(name: str, ask: Ask) -> Estimate | None:
    """The lowest risk of two heads minus the Bayes risk; `None` if no search converged."""
    asked = questions(name)
    if not asked:
        return None
    two, bayes = ask(asked)
    if not is_converged(two["result"]):
        return None
    error = two["risk_error"] + bayes["risk_error"]
    return Estimate(two["risk"] - bayes["risk"], error, ErrorKind.STANDARD)
