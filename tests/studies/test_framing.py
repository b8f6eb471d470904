"""The study of framing: what it runs, what it counts, and that the command writes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedwarden.cli import main
from fedwarden.core.notes import Note
from fedwarden.core.types import RoundRecord
from fedwarden_research.studies import framing


def record(t, weights=(1, 1, 1, 1), excluded=(), suspended=()):
    return RoundRecord(
        round=t, client_ids=("0", "1", "2", "3"), num_examples=np.ones(4), weights=np.array(weights) / 4,
        excluded=tuple(excluded), suspended=tuple(suspended), metrics={"accuracy": 0.5},
    )  # fmt: skip


def test_only_honest_clients_count():
    """The attacker 0 is excluded, and so is 2; 1 is skipped twice in eight rounds, and 3 in the last six."""
    rounds = [record(1, excluded=("0", "1", "2"), suspended=("1",)), record(2, (1, 0, 1, 1), ("0", "2"))]
    rounds += [record(t, (1, t != 5, 1, 0), ("0", "2")) for t in range(3, 9)]
    told = framing.tally(rounds, {"0": frozenset()})
    assert told == {"excluded": 1, "skipped": 2, "out": 1, "late_accuracy": 0.5, "part": 6 / 8}


def test_the_part_of_a_client_includes_its_copies():
    shared = replace(record(1, (1, 0.5, 0.5, 1)), notes=(Note.of("copies_share", "1", "2", leading=0),))
    assert [framing.part(shared, client) for client in "012"] == [1.0, 1.0, 1.0]
    assert framing.part(record(1, (1, 0.5, 0.5, 1)), "2") == 0.5


def test_every_way_has_the_runs_without_attack_beside_it():
    cells = framing.cells([0], "digits", 2, (framing.NONE, *framing.HOWS))
    by_way = {how: [t for c, t in cells if c["how"] == how] for how in (framing.NONE, *framing.HOWS)}
    assert {len(tables) for tables in by_way.values()} == {len(framing.SIZES) * len(framing.ALPHAS)}
    assert not any(t["attacks"] for t in by_way[framing.NONE])
    assert all(2 * f < n for n, f in framing.SIZES)


def found(how, excluded):
    cell = {"clients": 4, "attackers": 1, "alpha": None, "how": how, "seed": 0}
    result = {"excluded": excluded, "skipped": 1, "out": 0, "late_accuracy": 0.9, "part": 0.75}
    return {"cell": cell, "result": result}


def test_the_headline_counts_runs():
    told = framing.headline([found("copy", 2), found("oppose", 0), found("none", 0)])
    assert told == (
        "`auto` excluded an honest client for good in 1 of 2 runs (50.0 %) with framing, and in 0 of 1 run "
        "(0.0 %) without."
    )
    page = framing.page([found("copy", 2)], "digits", 2, "fedwarden bench framing")
    assert "| copy | 1 | 1: 100.0 % (2.5 to 100.0) |" in page


def test_an_unknown_way_is_refused(tmp_path, capsys):
    assert main(["bench", "framing", "--attack", "cpy", "--home", str(tmp_path)]) == 2
    assert "there is no attack 'cpy'; did you mean 'copy'?" in capsys.readouterr().err
