"""Honest clients over long runs: the cells as they were agreed, what is counted of a run, and the tables by hand."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.optimize import brentq

from fedwarden.cli import main
from fedwarden.core.errors import ConfigError
from fedwarden.core.types import RoundRecord
from fedwarden.sim.scenario import load_scenario
from fedwarden.studies import runner
from fedwarden.studies.attack_cases import choose
from fedwarden_research.studies.long_runs import (
    Case,
    by_split,
    cases,
    cells,
    costs,
    differences,
    excluded_by,
    exclusions,
    headline,
    left_out,
    study_name,
    tally,
)
from markdown_rows import rows


def test_the_cases():
    """Everybody in every round: 4 by 4 cases, one of them impossible on digits; and three more."""
    alike, nearly, unlike, very = ([(n, a, 1.0) for n in (5, 10, 20, 40)] for a in (None, 100.0, 0.5, 0.1))
    partly = {(100, None, 0.1), (40, None, 0.3), (40, 0.5, 0.3)}
    every = {*alike, *nearly, *unlike, *very, *partly}
    found = {data: [(c.clients, c.alpha, c.participation) for c in cases(data)] for data in ("digits", "mnist")}
    assert set(found["mnist"]) == every
    assert set(found["digits"]) == every - {(40, 0.1, 1.0)}
    assert [len(f) for f in found.values()] == [18, 19]


@pytest.mark.parametrize("data", ["digits", "mnist"])
def test_every_cell_is_a_scenario_without_attackers(data):
    made = cells([3, 4], cases(data), data, rounds=7)
    assert len(made) == 2 * 2 * len(cases(data))
    assert len({json.dumps(cell, sort_keys=True) for cell, _ in made}) == len(made)
    for cell, table in made:
        scenario = load_scenario(table)
        assert (scenario.seed, scenario.rounds, scenario.attacks) == (cell["seed"], 7, ())
        assert (scenario.data.dataset.name, scenario.data.clients) == (data, cell["clients"])
        partition = scenario.data.partition
        assert partition.name == ("iid" if cell["alpha"] is None else "dirichlet")
        assert partition.options.get("alpha") == cell["alpha"]
        assert scenario.train.participation == cell["participation"]
        assert scenario.guard.preset == cell["preset"]
    assert {cell["preset"] for cell, _ in made} == {"auto", "none"}


def test_settings_of_the_guard_leave_fedavg_as_it_is():
    settings = ["train.lr=0.05", "guard.shorten=3.0"]
    for cell, table in cells([0], cases(), "digits", 7, settings):
        assert table["train"]["lr"] == 0.05
        assert table["guard"].get("shorten") == (3.0 if cell["preset"] == "auto" else None)
    names = {study_name("digits", 7), study_name("digits", 7, settings), study_name("digits", 7, settings[:1])}
    assert len(names | {study_name("mnist", 7), study_name("digits", 8)}) == 5


@pytest.mark.parametrize("setting", ["seed=1", "data.clients=3", "data={clients = 3}", "data.partition.alpha=1.0"])
def test_what_tells_the_cases_apart_is_not_set(setting):
    with pytest.raises(ConfigError, match="the study decides"):
        cells([0], cases(), "digits", 7, [setting])


def test_cases_by_name_or_by_words():
    known = cases()
    assert choose(known, []) == known
    assert choose(known, ["iid, 40 clients"]) == [Case(40)]
    assert choose(known, ["0.1", "of 100"]) == [Case(100, participation=0.1), *(Case(n, 0.1) for n in (5, 10, 20))]
    with pytest.raises(ConfigError, match="did you mean 'IID, 5 clients'"):
        choose(known, ["IDD, 5 clients"])


def record(t, weights, excluded=(), accuracy=0.5):
    ids, values = tuple(weights), np.array(list(weights.values()))
    return RoundRecord(t, ids, np.ones(len(ids)), values, excluded=excluded, metrics={"accuracy": accuracy})


def test_what_is_kept_of_a_run():
    """b misses round 1, c is excluded in round 2 and misses that round for that reason, d misses round 3."""
    found = tally(
        [
            record(1, {"a": 0.5, "b": 0.0, "c": 0.5}, accuracy=0.1),
            record(2, {"a": 0.5, "b": 0.5, "c": 0.0}, ("c",), accuracy=0.3),
            record(3, {"a": 1.0, "d": 0.0}, ("c",), accuracy=0.4),
            *(record(t, {"a": 1.0}, ("c",), accuracy=0.6) for t in (4, 5, 6)),
        ]
    )
    assert found["excluded_in"] == {"c": 2}
    assert found["replied"] == [3, 2, 2, 1, 1, 1]
    assert found["left_out"] == [1, 0, 1, 0, 0, 0]
    assert found["late_accuracy"] == pytest.approx((0.3 + 0.4 + 3 * 0.6) / 5)  # the first round is not among five
    assert json.loads(json.dumps(found)) == found


def result(seed, case, preset="auto", late=0.9, excluded_in=None, out=None, rounds=200, suspended_in=None):
    """A run in which every client replies in every round; ``out`` has the clients left out, by round."""
    kept = {
        "excluded_in": excluded_in or {},
        "suspended_in": suspended_in or {},
        "still_suspended": sum(t > 100 for t in (suspended_in or {}).values()),
        "replied": [case.clients] * rounds,
        "left_out": [(out or {}).get(t, 0) for t in range(1, rounds + 1)],
        "late_accuracy": late,
    }
    return {"cell": {**case.cell, "preset": preset, "seed": seed}, "result": kept}


FIVE, TEN, TENTH = Case(5), Case(10, 0.5), Case(100, participation=0.1)
RESULTS = [
    result(0, FIVE, excluded_in={"0": 30}, out={1: 3, 31: 1}, suspended_in={"0": 29, "3": 150}),
    result(1, FIVE, excluded_in={"1": 31, "2": 200}, late=0.92),
    result(2, FIVE, late=0.94),
    *(result(seed, FIVE, "none", late=0.91) for seed in (0, 1)),
    result(0, TEN, excluded_in={"0": 200}, out={200: 10}),
    result(0, TEN, "none", excluded_in={"0": 1}),
    result(0, TENTH),
]


def test_runs_with_an_exclusion_by_hand():
    found = [r["result"] for r in RESULTS[:3]]
    assert [excluded_by(found, h) for h in (29, 30, 31, 200)] == [0, 1, 2, 2]
    assert by_split(RESULTS, 30) == {"IID": (1, 4), "Dirichlet 0.5": (0, 1)}
    assert by_split(RESULTS, 200) == {"IID": (2, 4), "Dirichlet 0.5": (1, 1)}


def test_the_headline_by_hand():
    assert headline(RESULTS, 200) == (
        "Without attackers `auto` had excluded an honest client for good by round 200 in 3 of 5 runs (60.0 %): "
        "2 of 4 with IID data, 1 of 1 with Dirichlet 0.5 data. By round 30 it was 1 of 5. "
        "It had suspended one for a while in 1 of 5, and after the last round one was still suspended in 1."
    )
    assert headline([], 200) == "`auto` was not run."


def test_rounds_missed_by_hand():
    """Three runs of five clients: 3 of 450 client-rounds up to round 30, 1 of 2,550 from there on."""
    found = [r["result"] for r in RESULTS[:3]]
    assert left_out(found, 1, 30) == pytest.approx(3 / 450)
    assert left_out(found, 31, 200) == pytest.approx(1 / 2550)
    assert np.isnan(left_out([{"replied": [0], "left_out": [0]}], 1, 1))


def test_the_table_of_exclusions_by_hand():
    """The limits of 1 of 3: P(at least 1) = 0.025 where (1 - p)^3 = 0.975, P(at most 1) where 3p^2 - 2p^3 = 0.975."""
    low, high = 100 * (1 - 0.975 ** (1 / 3)), 100 * brentq(lambda p: 3 * p**2 - 2 * p**3 - 0.975, 0, 1)
    text = exclusions(RESULTS, cases(), 200)
    assert text.splitlines()[0].endswith(
        "| runs | excluded by round 30 | excluded by round 200 | runs with a suspension | suspended after round 200 |"
    )
    assert rows(text) == [
        [
            "IID",
            "5",
            "3",
            f"1: 33.3 % ({low:.1f} to {high:.1f})",
            f"2: 66.7 % ({100 - high:.1f} to {100 - low:.1f})",
            "1",
            "1",
        ],
        ["IID", "10 of 100", "1", "0: 0.0 % (0.0 to 97.5)", "0: 0.0 % (0.0 to 97.5)", "0", "0"],
        ["Dirichlet 0.5", "10", "1", "0: 0.0 % (0.0 to 97.5)", "1: 100.0 % (2.5 to 100.0)", "0", "0"],
    ]


def test_the_table_of_costs_by_hand():
    """Seeds 0 and 1 have a run of FedAvg: 0.90 and 0.92 beside 0.91. Student's t of one degree at 97.5 % is 12.706."""
    assert differences(RESULTS, FIVE) == pytest.approx([-1.0, 1.0])
    assert differences(RESULTS, TENTH) == []
    first, tenth, ten = rows(costs(RESULTS, cases(), 200))
    assert first[:4] == ["IID", "5", "0.67 %", "0.04 %"]
    assert first[4].startswith("92.0 ± ")
    assert first[5:] == ["91.0 ± 0.0", "+0.00 ± 12.71"]
    assert tenth == ["IID", "10 of 100", "0.00 %", "0.00 %", "90.0", "-", "-"]
    assert ten == ["Dirichlet 0.5", "10", "0.00 %", f"{100 * 10 / 1700:.2f} %", "90.0", "90.0", "+0.00"]


SMALL = ("bench", "long-runs", "--seeds", "1", "--rounds", "2", "--processes", "1", "--set", "train.epochs=1")


def test_the_command(tmp_path, capsys, monkeypatch):
    """Real runs, in a thread; a second call runs nothing."""
    monkeypatch.setattr(runner, "ProcessPoolExecutor", lambda n, *_: ThreadPoolExecutor(n))
    asked = [*SMALL, "--case", "IID, 5 clients", "--home", str(tmp_path)]
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"] == 2  # with the guard and without
    assert told["by_round"] == {"2": {"IID": {"excluded": 0, "runs": 1}}}  # evidence takes three rounds
    (kept,) = (tmp_path / "studies").iterdir()
    before = kept.read_bytes()
    assert main([*asked, "--out", str(tmp_path / "pages")]) == 0
    assert kept.read_bytes() == before
    text = (tmp_path / "pages" / "long-runs.md").read_text()
    assert "| IID | 5 | 1 | 0: 0.0 % (0.0 to 97.5) |" in text
    assert "fedwarden bench long-runs --data digits --seeds 1 --rounds 2 --case 'IID, 5 clients'" in text
    assert "in 0 of 1 run (0.0 %): 0 of 1 with IID data." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--data", "cifar"], "there are settings for digits, mnist"),
        (["--case", "IID, 6 clients"], "there is no case 'IID, 6 clients'"),
        (["--set", "rounds=3"], "the study decides rounds"),
        (["--set", "train.lrr=3"], "did you mean 'lr'?"),
        (["--set", "guard.shorten=-1"], "shorten"),
        (["--defence", "Krum"], "No such option: --defence"),
        (["mine.toml"], "mine.toml"),
    ],
)
def test_bad_calls(args, part, tmp_path, capsys):
    assert main(["bench", "long-runs", *args, "--home", str(tmp_path / "home")]) == 2
    assert part in capsys.readouterr().err
    assert not (tmp_path / "home").exists()
