"""Studies: what is done stays done, whatever cut the study off."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedwarden.sim.federation import simulate
from fedwarden.sim.scenario import load_scenario
from fedwarden.studies import runner
from fedwarden.studies.runner import Job, one, results, results_file, work

TINY = {
    "rounds": 2,
    "data": {"clients": 3, "validation": 0.1},
    "model": {"name": "mlp", "hidden": [4]},
    "train": {"workers": 1, "group": 1},
    "attacks": [{"name": "label_flip", "count": 1}],
}


def cells(count):
    return [({"seed": i, "preset": "auto"}, {"seed": i}) for i in range(count)]


@pytest.fixture
def ran(monkeypatch):
    """The tables that were run, in place of simulations in processes."""
    tables = []

    def pretend(table):
        if table["seed"] in failing:
            raise RuntimeError("mine")
        tables.append(table["seed"])
        return {"accuracy": table["seed"] / 10, "notes": []}

    failing = set()
    monkeypatch.setattr(runner, "one", pretend)
    monkeypatch.setattr(runner, "ProcessPoolExecutor", lambda n, *_: ThreadPoolExecutor(n))
    return tables, failing


def collect(study, cells, folder, processes):
    return work([Job(study, cell, table) for cell, table in cells], folder, processes)


def seeds(folder):
    return sorted(r["cell"]["seed"] for r in results(folder, "s"))


def test_every_cell_is_run_once(ran, tmp_path):
    tables, _ = ran
    assert list(collect("s", cells(5), tmp_path, 2)) == [0, 1, 2, 3, 4, 5]
    assert sorted(tables) == [0, 1, 2, 3, 4]
    found = sorted(results(tmp_path, "s"), key=lambda r: r["cell"]["seed"])
    assert found == [{"cell": c, "result": {"accuracy": c["seed"] / 10, "notes": []}} for c, _ in cells(5)]


def test_what_is_done_is_not_run_again(ran, tmp_path):
    tables, _ = ran
    list(collect("s", cells(3), tmp_path, 2))
    tables.clear()
    assert list(collect("s", cells(5), tmp_path, 2)) == [3, 4, 5]
    assert sorted(tables) == [3, 4]
    reordered = [({"preset": "auto", "seed": 0}, {"seed": 0})]
    assert list(collect("s", reordered, tmp_path, 1)) == [1]  # the order of a cell's keys means nothing
    assert list(collect("other", cells(1), tmp_path, 1)) == [0, 1]  # another study has results of its own
    assert sorted(tables) == [0, 3, 4]


@pytest.mark.usefixtures("ran")
def test_a_study_cut_off_goes_on(tmp_path):
    going = collect("s", cells(4), tmp_path, 1)
    assert [next(going), next(going), next(going)] == [0, 1, 2]
    going.close()
    assert len(seeds(tmp_path)) >= 2  # each result is on disk when its number is told
    list(collect("s", cells(4), tmp_path, 1))
    assert seeds(tmp_path) == [0, 1, 2, 3]


def test_a_half_written_last_line_is_survived(ran, tmp_path):
    """Cut off at any character, also right after a bracket: the others are kept and the cell is run again."""
    tables, _ = ran
    list(collect("s", cells(3), tmp_path, 1))
    path = results_file(tmp_path, "s")
    *whole, last = path.read_text().splitlines()
    for kept in range(1, len(last) + 1):  # at the end, all but the line's end is there
        path.write_text("\n".join([*whole, last[:kept]]))
        found = seeds(tmp_path)
        assert found[:2] == [0, 1]
        tables.clear()
        list(collect("s", cells(4), tmp_path, 1))
        assert sorted(found + tables) == [0, 1, 2, 3]
        assert seeds(tmp_path) == [0, 1, 2, 3]


def test_a_cell_that_fails_loses_no_other(ran, tmp_path):
    _, failing = ran
    failing.add(1)
    with pytest.raises(RuntimeError, match="mine"):
        list(collect("s", cells(4), tmp_path, 1))
    failing.clear()
    list(collect("s", cells(4), tmp_path, 1))
    assert seeds(tmp_path) == [0, 1, 2, 3]


def test_one_is_the_summary_of_a_run(tmp_path):
    found = one(TINY)
    want = simulate(load_scenario(TINY), tmp_path)
    assert {k: found[k] for k in want.summary} == want.summary
    assert found["clients_accuracy"] == want.records[-1].metrics["clients_accuracy"]
    assert json.loads(json.dumps(found)) == found


@pytest.mark.slow
def test_a_study_in_processes_of_its_own(tmp_path):
    table = {**TINY, "data": {"clients": 3}}
    assert list(collect("real", [({"seed": 0}, table)], tmp_path, 1)) == [0, 1]
    (found,) = results(tmp_path, "real")
    assert found["cell"] == {"seed": 0}
    assert found["result"]["rounds"] == 2
    assert found["result"]["clients_accuracy"] is None
    assert list(collect("real", [({"seed": 0}, table)], tmp_path, 1)) == [1]
