"""The study of honest clients that differ: what it runs, what it counts, and that the command writes it."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fedwarden.cli import main
from fedwarden.core.types import RoundRecord
from fedwarden.sim.data.world import build_world
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import load_scenario
from fedwarden.studies.attack_cases import choose
from fedwarden_research.studies import different

AT_HAND = [kind for kind in different.KINDS if kind.file is None]


def tables(kind, n=10, defence="FedAvg", rounds=6, seed=3):
    (kind,) = choose(different.KINDS, [kind])
    return load_scenario(different.scenario_of(kind, n, defence, "digits", rounds, seed))


@pytest.mark.parametrize("kind", AT_HAND, ids=lambda kind: kind.name)
def test_every_kind_is_a_scenario_without_attackers(kind):
    federation = Federation(tables(kind.name, kind.sizes[0], "auto"))
    assert federation.truth == {}
    assert len(federation.clients) == kind.sizes[0]


def labels(scenario, client):
    world = build_world(scenario)
    return Counter(world.y[world.rows[client]].tolist())


def test_what_the_kinds_change():
    owner = tables("one owner of a class")
    assert owner.recalls == (3,)  # of seed 3
    assert (labels(owner, "0")[3] > 100, labels(owner, "1")[3]) == (True, 0)
    assert len(labels(owner, "0")) == 10
    assert set(labels(tables("one owner with only that class"), "0")) == {3}
    two = tables("two owners of a class")
    assert [labels(two, c)[3] > 0 for c in "012"] == [True, True, False]
    most = tables("80 % of a class")
    assert labels(most, "0")[3] == round(0.8 * sum(labels(most, str(c))[3] for c in range(10)))
    assert tables("an owner that joins late", rounds=60).data.joins == {"0": 21}
    assert tables("inputs inverted halfway", rounds=60).differences[0].start == 31
    assert tables("three times the learning rate").train.own["0"].lr == pytest.approx(0.3)
    epochs = tables("five epochs against one").train
    assert (epochs.epochs, epochs.own["0"].epochs) == (1, 5)
    sizes = [len(rows) for rows in build_world(tables("ten times the data")).rows.values()]
    assert sizes[0] == pytest.approx(10 * sizes[1], abs=10)


def test_rules_are_told_of_a_fifth_of_the_clients():
    assert tables("inverted inputs", 20, "Multi-Krum").guard.aggregator.options == {"f": 4}
    assert tables("Dirichlet 0.1", 4, "trimmed mean").guard.aggregator.options == {"b": 0}


def test_every_run_has_one_of_fedavg_beside_it():
    cells = [c for c, _ in different.cells(range(2), AT_HAND, "digits", 6, ("FedAvg", "auto"))]
    assert len({tuple(c.values()) for c in cells}) == len(cells)
    places = {d: {(c["kind"], c["clients"], c["seed"]) for c in cells if c["defence"] == d} for d in ("FedAvg", "auto")}
    assert places["FedAvg"] == places["auto"]
    assert {c["clients"] for c in cells if c["kind"] == "Dirichlet 0.3"} == {4, 5, 10, 20}
    some = different.cells([0], AT_HAND, "digits", 6, ("FedAvg",), [7])
    assert {c["clients"] for c, _ in some} == {7}


def test_settings_of_the_guard_are_for_auto_alone():
    made = different.cells([0], AT_HAND[:1], "digits", 6, ("FedAvg", "auto"), [5], ["guard.quorum=3", "train.lr=0.7"])
    by = {cell["defence"]: table["scenario"] for cell, table in made}
    assert [by[d]["guard"].get("quorum") for d in ("FedAvg", "auto")] == [None, 3]
    assert [by[d]["train"]["lr"] for d in ("FedAvg", "auto")] == [0.7, 0.7]


def record(t, weights, excluded=(), suspended=()):
    ids = tuple("012"[: len(weights)])
    return RoundRecord(
        round=t, client_ids=ids, num_examples=np.ones(len(ids)), weights=np.array(weights), excluded=tuple(excluded),
        suspended=tuple(suspended), metrics={"accuracy": t / 10, "class_recall": 0.5},
    )  # fmt: skip


def test_what_is_kept_of_a_run():
    """Client 2 is suspended in round 2 and excluded from round 3 on, where it is asked no more."""
    rounds = [
        record(1, [0.5, 0.0, 0.5]),
        record(2, [0.5, 0.5, 0.0], ("2",), ("2",)),
        *(record(t, [0.5, 0.5], ("2",)) for t in (3, 4, 5, 6)),
    ]
    told = different.tally(rounds, ["2"])
    assert told["late_accuracy"] == pytest.approx(0.4)  # of .2 to .6
    assert (told["late_recall"], told["late_own_kind"]) == (0.5, None)
    assert told["excluded"] == ["2"]
    assert told["out"] == {"ordinary": [1, 12], "different": [5, 6]}
    held = [*rounds[:2], replace(rounds[1], round=3)]
    assert different.tally(held, ["2"])["excluded"] == []


def found(defence, accuracy, seed=0, recall=None, excluded=(), kind="inverted inputs"):
    cell = {"kind": kind, "clients": 10, "defence": defence, "seed": seed}
    out = {"ordinary": [1, 100], "different": [5, 10]}
    kept = {"late_accuracy": accuracy, "late_recall": recall, "late_own_kind": None}
    return {"cell": cell, "result": {**kept, "excluded": list(excluded), "out": out}}


RESULTS = [
    found("FedAvg", 0.95, 0, 0.9),
    found("FedAvg", 0.90, 1, 0.8),
    found("auto", 0.91, 0, 0.4, ["0"]),  # four points below, exactly
    found("auto", 0.88, 1, 0.5),
    found("auto", 0.10, 2),  # no run of FedAvg beside it
]


def test_runs_are_compared_with_fedavg_of_the_same_seed():
    told = different.compare(RESULTS, "auto")
    assert told.gains["late_accuracy"] == pytest.approx([-0.04, -0.02])
    assert told.gains["late_recall"] == pytest.approx([-0.5, -0.3])
    assert told.gains["late_own_kind"] == []
    assert (told.runs, told.pairs, told.below, told.excluded) == (3, 2, 1, 1)
    assert told.out == {"ordinary": (3, 300), "different": (15, 30)}


def test_the_page_and_the_table_tell_the_numbers(tmp_path):
    assert different.headline(RESULTS).startswith(
        "`auto` is 4 points or more below FedAvg in 1 of 2 runs, and excludes"
    )
    assert different.headline(RESULTS[:2]) == "`auto` was not run."
    page = different.page(RESULTS, "digits", 6, "fedwarden bench different", "Skipped: stations.")
    assert "## Inverted inputs" in page
    assert "Skipped: stations." in page
    # the mean of -4 and -2, with a half width of 12.7 standard errors of 1
    assert "| auto | 3 | -3.0 ± 12.7 | 1: 50.0 % (1.3 to 98.7) | -40.0 ± " in page
    assert "| 1.0 % | 50.0 % |" in page
    (path,) = different.write(RESULTS, tmp_path, "digits")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["defence"], r["runs"], r["below"], r["excluded"]) for r in rows] == [
        ("FedAvg", "2", "0", "0"), ("auto", "3", "1", "1"),
    ]  # fmt: skip
    assert rows[1]["late_accuracy"] == "-0.0300"
    assert rows[1]["late_own_kind"] == ""
    assert different.write([], tmp_path, "digits") == []


def test_real_federations_without_their_files_are_skipped(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDWARDEN_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    plan = different.plan(different.Asked(case=["Beijing", "8 bits"], seeds=1))
    assert {cell["kind"] for cell, _ in plan.cells} == {"8 bits a number"}
    assert "Skipped: stations of Beijing. There is no file beijing_air.csv.gz in any data folder." in plan.told([])
    assert "Skipped" in plan.page([])


@pytest.mark.slow
def test_the_command_writes_the_page_and_a_table(tmp_path, capsys):
    asked = ["bench", "different", "--seeds", "1", "--rounds", "2", "--case", "one owner of a class", "--clients", "5"]
    asked += ["--defence", "auto", "--home", str(tmp_path), "--out", str(tmp_path / "out"), "--processes", "2"]
    assert main(asked) == 0
    told = capsys.readouterr().out
    assert "2 runs; page in" in told
    assert "--clients 5" in (tmp_path / "out" / "different.md").read_text()
    assert (tmp_path / "out" / "different.csv").is_file()
    assert main(asked) == 0
    assert capsys.readouterr().out == told


def test_what_there_is_not_is_refused(tmp_path, capsys):
    for option, value, said in (
        ("--case", "invrted", "there is no case 'invrted'"),
        ("--defence", "Krum", "there is no defence 'Krum'"),
        ("--set", "data.clients=3", "the study decides data.clients"),
    ):
        assert main(["bench", "different", option, value, "--home", str(tmp_path)]) == 2
        assert said in capsys.readouterr().err
