"""A comparison of defences on a scenario of one's own: its statistics, its files, and what it refuses."""

import csv
import tomllib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import stats

from fedwarden.core.errors import ConfigError
from fedwarden.studies import runner
from fedwarden_research.studies import compare, defences
from fedwarden_research.studies.findings import Comparison, detectable, findings, paired
from fedwarden_research.studies.plan import Asked

MINE = """
from dataclasses import dataclass
from fedwarden import Aggregate

@dataclass(frozen=True)
class First:
    def init(self):
        return {}
    def step(self, state, cohort, weights):
        shares = weights * 0
        shares[-1] = 1.0
        return state, Aggregate(cohort.updates.weighted_sum(shares), shares)

@dataclass(frozen=True)
class Loud:
    knowledge = "own"
    def forge(self, view, rng):
        return 9 * view.own
"""
SMALL = 'rounds = 2\ndata = {dataset = "digits", clients = 5}\nmodel = {name = "mlp", hidden = [4]}\n'


@pytest.fixture
def file(tmp_path, forgetful):
    (tmp_path / "mine_here.py").write_text(MINE)
    (tmp_path / "my.toml").write_text(SMALL)
    return tmp_path / "my.toml"


def results(**measured):
    """A comparison of three defences at as many seeds as there are numbers, all else made up."""
    attacks = {"no attack": [], "flip": [{"name": "label_flip"}]}
    seeds = range(len(next(iter(measured.values()))))
    made = Comparison({"rounds": 1}, {name: {"preset": name} for name in measured}, attacks, seeds, "it", {})
    rest = {"rounds": 1, "attackers": 0, "caught": 0, "wronged": 0, "error": None}
    found = [
        {"cell": dict(made.cell(name, attack, seed)), "result": {"accuracy": values[seed], **rest}}
        for name, values in measured.items()
        for attack in attacks
        for seed in seeds
    ]
    return made, found


def test_the_test_is_scipys_and_its_power_is_what_it_says():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 6))
    assert paired(a - b) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert paired(np.ones(3)) == 0.0
    far = detectable(5, 0.05)
    draws = rng.normal(far, 1.0, size=(20_000, 5))
    assert np.mean(stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.01)


def test_the_first_is_compared_with_every_other_one():
    told = findings(*results(mine=[0.9, 0.91, 0.92], weak=[0.4, 0.4102, 0.42], same=[0.9, 0.91, 0.92]))
    assert [(t.against, t.verdict) for t in told.tests] == [("weak", "better"), ("same", "cannot tell")] * 2
    assert told.tests[0].mean == pytest.approx(50.0, abs=0.1)
    assert r"mine & $\mathbf{91.0 \pm 2.5}$" in told.latex()
    assert r"weak & $41.0 \pm 2.5^{*}$" in told.latex()
    assert "Holm for 4 comparisons" in told.told()
    told = findings(*results(mine=[0.9, 0.91], weak=[0.4, 0.41]))
    assert {t.verdict for t in told.tests} == {"cannot tell"}
    assert "No test: 2 seeds cannot tell defences apart; give at least 3." in told.told()


def test_real_runs_and_their_files(call, call_json, workspace, file, monkeypatch):
    """In a thread. Again it runs nothing; another seed goes into the same folder, another scenario does not."""
    monkeypatch.setattr(runner, "ProcessPoolExecutor", lambda n, *_: ThreadPoolExecutor(n))
    out = file.parent / "out"
    asked = ("bench", "defences", file, "--processes", 1, "-o", out, "--defence", "mine_here:First")
    asked += ("--defence", "none", "--attack", "mine_here:Loud", "--attack", "backdoor(target=2)")
    told = call_json(*asked, "--seeds", 1)
    assert told["runs"] == 6  # two defences; no attack and two attacks
    assert {cell["measure"] for cell in told["cells"]} == {"accuracy", "attack_success"}
    names = ["cells.csv", "comparison.md", "comparison.pdf", "comparison.svg", "comparison.toml", "runs.csv"]
    assert sorted(p.name for p in out.iterdir()) == [*names, "table.tex", "tests.csv"]
    with (out / "runs.csv").open() as rows:
        assert [row["attackers"] for row in csv.DictReader(rows)] == ["0", "0", "1", "1", "1", "1"]
    described = tomllib.loads((out / "comparison.toml").read_text())
    assert described["attacks"]["backdoor(target=2)"] == [{"name": "backdoor", "share": 0.25, "target": 2}]
    assert {"fedwarden", "torch", "python"} <= set(described["versions"])
    (kept,) = (workspace / "studies").iterdir()
    before = kept.read_bytes()
    assert call_json(*asked, "--seeds", 1) == told
    assert kept.read_bytes() == before
    (file.parent / "mine_here.py").write_text(MINE + "\n")  # only what names the module is run again
    assert call_json(*asked, "--seeds", 1)["runs"] == 6
    assert len(kept.read_text().splitlines()) == 6 + 4
    assert call_json(*asked, "--seeds", 2)["runs"] == 12
    for less, words in (
        (("--seeds", 2, "--rounds", 3), "rounds was 2 and is 3"),
        (("--seeds", 1), "seeds was [0, 1] and is [0]"),
    ):
        code, said, err = call(*asked, *less)
        assert (code, said) == (2, "")
        assert f"{out} holds another comparison: {words}; give another folder" in err


def test_an_error_of_ones_own_names_the_run(file):
    (file.parent / "mine_here.py").write_text(MINE.replace("shares = weights * 0", "raise KeyError('x')"))
    cells = compare.plan(Asked(file=file, defence=["mine_here:First"], rounds=1)).cells
    where = r"mine_here:First without attack, seed 0: KeyError: 'x' \(mine_here.py, line 10\)"
    with pytest.raises(ConfigError, match=where):
        compare.play(cells[0][1])


def test_a_function_that_returns_a_warden_is_a_defence_in_every_process(file, monkeypatch):
    made = "import fedwarden as fw\ndef warden():\n    return fw.Warden.preset('pid-made')\n"
    (file.parent / "mine_here.py").write_text(made)
    run = compare.plan(Asked(file=file, defence=["mine_here:warden"], rounds=1)).cells[0][1]
    monkeypatch.setattr("fedwarden.core.registry._adopted", {})  # as in a process that has just begun
    assert compare.play(run)["rounds"] == 1


def test_rules_are_told_how_many_attack(file):
    file.write_text(SMALL + 'attacks = [{name = "sign_flip", count = 2, start = 2}]\n')
    cells = compare.plan(Asked(file=file, defence=["krum", "trimmed_mean(b=1)"], attack=["scaling"], seeds=1)).cells
    guards = [run["scenario"]["guard"]["aggregator"] for _, run in cells]
    assert guards == [{"name": "krum", "f": 2}, {"name": "trimmed_mean", "b": 1}] * 2
    assert cells[2][1]["scenario"]["attacks"] == [{"name": "scaling", "count": 2, "start": 2}]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"defence": ["krun"]}, "no aggregator or preset 'krun'; did you mean 'krum'"),
        ({"defence": ["label_flip"]}, "write --attack label_flip"),
        ({"defence": ["mine_here:Loud"]}, "write --attack mine_here:Loud"),
        ({"defence": ["mine_here:dataclass"]}, "defines no function or class 'dataclass'"),
        ({"attack": ["krum"]}, "write --defence krum"),
        ({"defence": ["krum(k=1)"]}, "--defence krum(k=1): aggregator 'krum' has no option 'k'"),
        ({"attack": ["label_flip(x=y)"]}, "options are TOML"),
        ({"attack": ["label_flip(share=0.01)"]}, "share = 0.01 of 5 clients is no attacker"),
        ({"defence": ["nowhere:At"]}, "cannot import 'nowhere:At', which --defence asks for"),
        ({"settings": ["guard.aggregator=krum"]}, "sets guard.aggregator, and every --defence has a guard of its own"),
        ({"settings": ["attacks=[{name='a'}, {name='b'}]"], "attack": ["ipm"]}, "has 2 tables [[attacks]]"),
        ({"data": "digits"}, "--data chooses the data of the grid"),
    ],
)
def test_mistakes_are_answered_before_anything_runs(file, asked, words):
    with pytest.raises(ConfigError) as error:
        defences.plan(Asked(file=file, **asked))
    assert words in str(error.value)


def test_a_folder_of_something_else_and_a_fragment(file):
    (file.parent / "guard.toml").write_text('preset = "none"\naggregator = "median"\n')
    with pytest.raises(ConfigError, match=r"as it has no comparison.toml"):
        compare.plan(Asked(file=file, folder=file.parent, defence=["guard.toml"]))
    plan = compare.plan(Asked(file=file, defence=["guard.toml"], seeds=1))
    assert plan.cells[0][0]["guard"] == {"preset": "none", "aggregator": "median"}
    with pytest.raises(ConfigError, match="name its file"):
        defences.plan(Asked(settings=["rounds=2"]))


def test_ctrl_c_says_how_to_go_on(call, file, monkeypatch):
    def cut_off(jobs, place, processes):
        yield 0
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "work", cut_off)
    code, _, err = call("bench", "defences", file, "--seeds", 1)
    assert code == 130
    assert err == "error: interrupted; 0 of 4 runs are kept, and the same command continues from there\n"
