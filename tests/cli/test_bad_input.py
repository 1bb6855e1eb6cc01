"""Bad input is one line that names the argument, what was given and what is allowed, and exit code 2."""

import pytest

BAD = [
    # arguments, then what the line must say
    ("bayes --nu -1", "--nu = -1", "≥ 0"),
    ("bayes --nu nan", "--nu = nan", "≥ 0"),
    ("bayes --nu five", "--nu = 'five'", "≥ 0"),
    ("bayes --nu inf", "--nu = inf", "≤ 1e+12"),
    ("bayes --task max --nu -inf", "--nu = -inf", ", or inf"),
    ("bayes --noise -0.5", "--noise = -0.5", "≥ 0"),
    ("bayes --noise nan", "--noise = nan", "≥ 0"),
    ("bayes --spread 0", "--spread = 0", "> 0"),
    ("bayes --task max --spread 2", "--spread = 2", "left out"),
    (
        "bayes --task spike",
        "--task = 'spike'",
        "one of spiked, max, features (did you mean spiked?)",
    ),
    ("bayes --length=", "--length = ''", "10, 1-3 or 1:0.25,8:0.75"),
    ("bayes --length ten", "--length = 'ten'", "10, 1-3 or 1:0.25,8:0.75"),
    ("bayes --length 0", "--length = [0]", "from 1 to"),
    ("bayes --length 3-1", "--length = 3-1", "the shortest first"),
    ("bayes --length 99999999999999999999", "--length = [1e+20]", "from 1 to"),
    ("bayes --noise 1e200", "--noise = 1e+200", "≤ 1e+12"),
    ("bayes --task features --features flipped:9 --noise 1e200", "--noise = 1e+200", "≥ 0"),
    ("bayes --length 2:0.5,3:0.4", "--length probabilities = [0.5, 0.4] (sum 0.9)", "sum one"),
    ("bayes --length 2:1.5,3:-0.5", "--length probabilities = [1.5, -0.5]", "≥ 0"),
    ("bayes --length 2:nan", "--length probabilities = [nan]", "≥ 0"),
    ("population --nu -1", "--nu = -1", "≥ 0"),
    ("population --attention sofmax", "--attention = 'sofmax'", "(did you mean softmax?)"),
    ("population --attention softmax,nothing", "--attention = 'nothing'", "one of softmax, linear"),
    ("population --attention=", "--attention = ''", "one of softmax, linear"),
    ("population --m-kk nan", "--m-kk = nan", "≤ 1e+12"),
    ("population --q-kv much", "--q-kv = 'much'", "≤ 1e+12"),
    ("population --m-kk 1 --q-kk 0.5", "overlaps", "eigenvalue -0.5", "positive semidefinite"),
    ("figure 99", "figure = '99'", "one of 1, 2, 3"),
    ("report --out .", "--out = '.'", "a file"),
    ("report --out /dev/full", "--out = '/dev/full'", "a file"),
    ("report --out /proc/no/page.html", "--out = '/proc/no/page.html'", "can be written"),
    ("report --out build/explore.html", "--out = ", "of another name"),
    ("simulate --alpha 1 --dim 100000000 --stream", "3e+16 numbers", "at most 1e+13"),
    ("figure 2 --out /proc/no", "--out = '/proc/no'", "can be written"),
    ("judge linear --out /proc/no", "--out = '/proc/no'", "can be written"),
    ("bayes --nu " + "9" * 400, "--nu = (beyond 1e308)", "≤ 1e+12"),
    ("bayes --task max --nu " + "9" * 400, "--nu = (beyond 1e308)", "≤ 1e+12, or inf"),
    ("sweep examples/attentions.toml --store /dev/null", "--store = '/dev/null'", "a file"),
    ("bayes --length " + "9" * 400, "--length = [beyond 1e308]", "from 1 to"),
    ("bayes --length 1-" + "9" * 400, "--length = 1-999", "…", "the shortest first"),
    ("bayes --length " + "9" * 5000, "--length = '999", "…"),
    ("flow --seed " + "9" * 5000, "--seed = '999", "…"),
    ("figure 2 --out {file}", "--out = '{file}'", "a folder"),
    ("bayes --nut 5", "--nut", "--nu", "attnrisk bayes --help"),
    ("bayes --nu", "--nu", "requires an argument"),
    ("bayes 5", "unexpected", "5"),
    ("figure", "NAME", "attnrisk figure --help"),
    ("baies", "baies", "bayes", "attnrisk --help"),
    ("--nonsense", "--nonsense", "attnrisk --help"),
]


@pytest.fixture
def figures(monkeypatch):
    """No figure may be begun."""
    monkeypatch.delattr("attnrisk.studies.figures.make")


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[0])
@pytest.mark.usefixtures("figures")
def test_one_line(run, case, tmp_path):
    file = tmp_path / "file"
    file.touch()
    arguments, *words = (part.format(file=file) for part in case)
    ran = run(*arguments.split())
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.endswith("\n")
    assert ran.err.count("\n") == 1
    for word in words:
        assert word in ran.err


def test_same_words_as_in_python(run):
    import attnrisk as ar

    with pytest.raises(ValueError, match="nu") as error:
        ar.SpikedSLR(nu=-1.0, length=3)
    as_typed = str(error.value).replace("nu ", "--nu ")
    assert run("bayes", "--nu", "-1").err == f"Error: {as_typed}\n"


def test_bad_input_is_refused_before_any_work(run, monkeypatch):
    monkeypatch.setattr("attnrisk.population.bayes_risk", lambda task: pytest.fail("began"))
    assert run("population", "--attention", "softmax,nothing").code == 2


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    from attnrisk.cli import main

    def broken(task):
        raise ValueError("operands could not be broadcast together")

    monkeypatch.setattr("attnrisk.population.bayes_risk", broken)
    with pytest.raises(ValueError, match="broadcast"):
        main(["bayes"])


def test_a_full_disk_is_one_line_too(run, monkeypatch):
    def full(task):
        raise OSError(28, "No space left on device", "figure.png")

    monkeypatch.setattr("attnrisk.population.bayes_risk", full)
    ran = run("bayes")
    assert ran.code == 1
    assert ran.err == "Error: [Errno 28] No space left on device: 'figure.png'\n"
