"""A quiet round is followed from the replies to the model through few rooms."""

from __future__ import annotations

import pytest

MOST = 234  # changes of room; 300 is too many to follow


def test_a_quiet_round_changes_rooms_seldom(capsys):
    pytest.importorskip("flwr")
    rooms = pytest.importorskip("rooms")
    assert rooms.main(["--calls"]) == 0
    *calls, counts = capsys.readouterr().out.splitlines()
    found = rooms.quiet_round()
    assert counts == f"{found.functions} functions in {found.files} files, {found.changes} changes of room"
    assert calls[0] == "flower: Guarded.aggregate_train"
    assert len(calls) == len(found.calls)
    assert found.changes <= MOST
