"""The study of groups: what it runs, what it counts, and that the command writes it."""

from __future__ import annotations

import numpy as np
import pytest

from fedwarden.cli import main
from fedwarden.core.types import RoundRecord
from fedwarden.guard.groups import Evidence
from fedwarden_research.studies import groups


def test_every_attack_is_run_with_every_size():
    cells = groups.cells([0, 1], "digits", 2, (groups.NONE, *groups.ATTACKS))
    keys = {tuple(cell.values()) for cell, _ in cells}
    assert len(keys) == len(cells) == 2 * len(groups.ALPHAS) * len(groups.SIZES) * (1 + 3 * len(groups.FS))
    assert all(table["size"] == cell["size"] for cell, table in cells)
    assert not any(t["scenario"]["attacks"] for c, t in cells if c["attack"] == groups.NONE)


def test_who_is_not_asked_is_kept_out_and_who_is_asked_may_be_lost():
    def record(t, ids, weights):
        return RoundRecord(t, ids, np.ones(len(ids)), np.array(weights))

    rounds = [record(1, ("a", "b", "c"), [0.0, 0.0, 1.0]), record(2, ("b", "c"), [0.5, 0.5])]
    assert groups.kept_out(rounds, {"a": frozenset()}) == {"kept_out": 1.0, "lost": 0.25}


def test_only_groups_without_an_attacker_count_as_clean():
    evidence = Evidence(((((("a", "b")), True), (("c", "d"), True)), ((("a", "c"), True), (("b", "d"), False))))
    assert groups.flag_rates(evidence, {"a"}) == {"clean_groups": 2, "clean_flagged": 1}


def found(size, caught, wronged=0):
    cell = {"alpha": None, "attack": "sign_flip", "attackers": 2, "size": size, "seed": 0}
    result = {
        "late_accuracy": 0.9, "attackers": 2, "caught": caught, "last_catch": 9 if caught == 2 else None,
        "wronged": wronged, "kept_out": 0.5, "lost": 0.1, "clean_groups": 10, "clean_flagged": 1,
    }  # fmt: skip
    return {"cell": cell, "result": result}


def test_the_headline_and_the_table_count_clients():
    results = [found(1, 2), found(3, 0, 1)]
    assert groups.headline(results).endswith(
        "excluded 2 of 2 with groups of 1 (and 0 honest clients), 0 of 2 with groups of 3 (and 1 honest client)."
    )
    assert groups.grid(results)[1][1] == [
        "IID", "sign_flip", "2", "3", "0 of 2", "-", "50.0", "1", "10.0", "10.0", "90.0"
    ]  # fmt: skip


@pytest.mark.slow
def test_the_command_writes_the_page_and_the_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(groups, "SIZES", (1, 2))
    monkeypatch.setattr(groups, "FS", (2,))
    asked = ["bench", "groups", "--seeds", "1", "--rounds", "2", "--attack", "sign_flip", "--home", str(tmp_path)]
    assert main([*asked, "--out", str(tmp_path / "out")]) == 0
    assert "1 file beside it" in capsys.readouterr().out
    assert "--attack sign_flip" in (tmp_path / "out" / "secure-aggregation.md").read_text()
    assert len((tmp_path / "out" / groups.CSV).read_text().splitlines()) == 1 + 2 * 2
