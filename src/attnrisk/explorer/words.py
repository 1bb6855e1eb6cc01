"""What the page says."""

import re

TITLE = "How well can this attention find the one token that matters?"

LEAD = (
    "A sequence hides one relevant token, the needle, and the label is its value. An attention head with a key $k$ "
    "and a value $v$ weighs the tokens and sums. The risk is its mean squared error: predicting zero costs 1."
)

NAMES = {
    "risk": "Risk",
    "weights": "Attention weights",
    "flow": "Gradient flow",
    "learning": "Learning from data",
}

CAPTIONS = {
    "risk": (
        "The least risk of each attention with infinite data. Black is the Bayes risk, which nobody can beat; the "
        "dotted grey line is a floor for all who look at one token at a time. Dots are computed at the sliders; lines "
        "join computed points. An open dot is a limit that only ever longer vectors approach."
    ),
    "weights": (
        "One sequence, as each attention weighs its tokens where its risk is least ($k$ along $k^*$, $v$ along "
        "$v^*$). The needle is in colour. Bars are $m_{vv}\\,\\sigma_\\ell$, with which the values $z^*$ are weighed: "
        "one for the needle and none elsewhere would be perfect."
    ),
    "flow": (
        "Gradient flow of the risk with infinite data, from four small random starts and from one where $k$ and $v$ "
        "have swapped their roles. In the middle, the overlaps of the first random run (solid) and of the swapped one "
        "(dashed). A dot is where a run came to rest, a cross where it had not."
    ),
    "learning": (
        "The test risk after learning from $N = \\alpha D$ sequences in high dimension $D$. Black: the best possible. "
        "Grey: what message passing reaches. Colours: the minimum of the empirical risk with the best ridges. Ticks on "
        "the right are the least risks with infinite data."
    ),
}

FORMULAS = {
    "risk": (
        r"f(X)=\sum_\ell\sigma(\chi)_\ell\,z_\ell,\qquad \chi=Xk/\sqrt D,\quad z=Xv/\sqrt D",
        r"\mathcal E=E\big[(y-f(X))^2\big]=1-2\,m_{vv}A+q_{vv}B,\qquad A=E[\sigma_\varepsilon],\quad "
        r"B=E\Big[\sum_\ell\sigma_\ell^2\Big]",
        r"\min_v\mathcal E=1-\frac{A^2}{B},\qquad \mathcal E_{\rm Bayes}=1-E[p_\varepsilon],\quad "
        r"p=\mathrm{softmax}(c_\nu\chi^*)",
    ),
    "weights": (
        r"\text{normalised: }\ \sigma(\chi)_\ell=\frac{\varphi(\chi_\ell)}{c_0+\sum_{\ell'}\varphi(\chi_{\ell'})}"
        r"\qquad \text{element-wise: }\ \sigma(\chi)_\ell=h(b+\chi_\ell)",
        r"\chi_\ell=m_{kk}\,\chi^*_\ell,\qquad \hat y=m_{vv}\sum_\ell\sigma(\chi)_\ell\,z^*_\ell,\qquad "
        r"y=z^*_\varepsilon",
    ),
    "flow": (
        r"\dot k=-D\,\partial_k\mathcal E,\qquad \dot v=-D\,\partial_v\mathcal E",
        r"m_{kk}=\tfrac{k\cdot k^*}D,\quad m_{kv}=\tfrac{k\cdot v^*}D,\quad m_{vk}=\tfrac{v\cdot k^*}D,\quad "
        r"m_{vv}=\tfrac{v\cdot v^*}D,\quad q_{kk}=\tfrac{k\cdot k}D,\quad q_{vv}=\tfrac{v\cdot v}D",
    ),
    "learning": (
        r"\min_{k,v}\ \sum_{\mu=1}^N\tfrac12\big(y_\mu-\sigma(\chi_\mu)\cdot z_\mu\big)^2"
        r"+\tfrac{r_k}2|k|^2+\tfrac{r_v}2|v|^2,\qquad N,D\to\infty,\quad \alpha=N/D",
        r"\mathcal E_{\rm best}(\alpha)=1-q_v\,E[p_\varepsilon],\qquad q=\frac{\hat q}{1+\hat q}\ "
        r"\text{ for }k\text{ and for }v",
    ),
}

TASKS = {
    "spiked": r"P(X\mid\varepsilon)\propto e^{\sqrt\nu\,\chi^*_\varepsilon}\prod_\ell N(X_\ell;0,I_D)"
    r"\qquad\text{(the needle is shifted by }\sqrt\nu\,k^*/\sqrt D\text{)}",
    "max": r"P(\varepsilon\mid X)=\mathrm{softmax}(\nu\chi^*)_\varepsilon"
    r"\qquad\text{(the needle is, softly, the token of the largest field)}",
}


def plain(text: str) -> str:
    """Text that may hold anything, such that markdown shows it as it is."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|<>~:$&@/])", r"\\\1", text)
