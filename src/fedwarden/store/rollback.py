"""Going back: a new run from a checkpoint of another one, before some clients were in the model, and without them.

Nothing of the other run is changed. The new one has a copy of its rounds up to the checkpoint, and is continued from
there as an interrupted run is, whichever engine plays it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core.errors import FedwardenError
from ..core.words import listed
from . import checkpoint, word
from .claim import claim
from .ledger import Ledger, Run
from .record import read_series
from .schema import ROUND_TABLES


@dataclass(frozen=True, eq=False)
class Start:
    """Where a run goes back to: the newest sound checkpoint (``round`` 0: none) before its clients were in the model.

    ``first`` is the first round with one of them in the model, ``still`` how many such rounds stay where another round
    was asked for, and ``faults`` are the checkpoints that were passed over.
    """

    first: int
    still: int
    round: int
    state: dict[str, Any]
    faults: list[str]

    @property
    def model(self) -> dict[str, Tensor]:
        """The arrays of the model by name, where the checkpoint of a server has one."""
        found: dict[str, Any] = self.state.get("model", {})
        names = found.get("names")
        return dict(zip(names, found["arrays"], strict=True)) if isinstance(names, list) else found  # Flower's, others'


def find_start(ledger: Ledger, run: Run, clients: Collection[str], before: int | None = None) -> Start:
    """Where a run goes back to, so that none of these clients was in the model, or to ``before`` a round."""
    series = read_series(ledger, run.id, 0, (), ())
    columns = [i for i, client in enumerate(series.clients) if client in clients]
    inside = series.rounds[(series.weights[:, columns] > 0).any(axis=1)].tolist()
    if not inside:
        raise FedwardenError(f"run {run.id}: {listed([*clients])} had no weight in any round; nothing to roll back")
    there = series.rounds.tolist()
    if before is not None and not 1 <= before <= there[-1]:
        raise FedwardenError(f"run {run.id} has no round {before}; expected 1 to {there[-1]}")
    lost = next((t for t, here in enumerate(there, 1) if t != here), there[-1])  # by a repair: nothing is known of it
    upto = min(lost, inside[0] if before is None else before) - 1

    def checked(state: Any, round: int) -> dict[str, Any]:
        if state["round"] != round:
            raise checkpoint.CheckpointError(f"it is of round {state['round']!a}")
        return dict(state)

    try:
        made, notes = checkpoint.newest(ledger.folder, run.id, run.identity, upto, checked)
        faults = [str(note.values["fault"]) for note in notes]
    except checkpoint.CheckpointError as error:
        made, faults = None, [str(error)]
    state = made or {"round": 0}
    round = state["round"]
    return Start(inside[0], sum(t <= round for t in inside), round, state, faults)


def roll_back(ledger: Ledger, run: Run, start: Start, clients: Sequence[str], by: str, reason: str) -> Run:
    """A new run, interrupted after the round of ``start``, whose next round excludes these clients by command.

    What was said of the other run by then holds in the same rounds, and what was said later from the next one on.
    """
    db = ledger.db
    why = f"run {run.id} is rolled back to its round {start.round}{f': {reason}' if reason else ''}"
    with claim(ledger.folder, run.id), ledger.transaction():
        kept = "name, engine, config, versions"
        head = f"INSERT INTO run ({kept}, created, state) SELECT {kept}, ?, 'interrupted' FROM run WHERE id = ?"
        new = db.execute(head, (time.time(), run.id)).lastrowid
        assert new is not None
        for table in ("client", "word", "audit", *ROUND_TABLES):
            names = [row["name"] for row in db.execute(f"PRAGMA table_info({table})") if row["name"] != "run"]
            of, tail = ", ".join(names), "" if table in ("client", "word") else f"AND round <= {start.round}"
            rows = f"SELECT {new}, {of} FROM {table} WHERE run = {run.id} {tail}"
            db.execute(f"INSERT INTO {table} (run, {of}) {rows}")
        db.execute("UPDATE word SET round = NULL WHERE run = ? AND round > ?", (new, start.round))
        for client in clients:
            word.put(ledger, new, "exclude", client, by, why)
        found = ledger.run(new)
        if start.round:  # before the run is committed: without its checkpoint it would begin anew
            path = checkpoint.checkpoint_path(ledger.folder, new, start.round)
            checkpoint.save(path, start.state, found.identity)
    return found
