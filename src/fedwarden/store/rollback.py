"""Going back: a new run from a checkpoint of another one, before some clients were in the model, and without them.

Nothing of the other run is changed. The new one has a copy of its rounds up to the checkpoint, and is continued from
there as an interrupted run is, whichever engine plays it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count
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
    """Where a run can go back to: ``first`` is the first round with one of the clients in the model.

    ``round`` is that of the newest sound checkpoint before it, or 0; ``faults`` are those that were passed over, and
    ``still`` the rounds up to it in which the clients were in the model, where another round was asked for.
    """

    first: int
    round: int
    state: Any
    faults: tuple[str, ...] = ()
    still: int = 0

    @property
    def model(self) -> dict[str, Tensor]:
        """The arrays of the model by name, where the checkpoint of a server has one."""
        found: dict[str, Any] = (self.state or {}).get("model") or {}
        if isinstance(names := found.get("names"), list):  # as Flower's are kept
            return dict(zip(names, found["arrays"], strict=True))
        return found


def find_start(ledger: Ledger, run: Run, clients: Collection[str], before: int | None = None) -> Start:
    """Where a run can go back to, so that these clients were not in the model, or to ``before`` a round."""
    series = read_series(ledger, run.id, 0, (), ())
    columns = [i for i, client in enumerate(series.clients) if client in clients]
    inside = series.rounds[(series.weights[:, columns] > 0).any(axis=1)].tolist()
    last = ledger.last_round(run.id)
    if not inside:
        plural = "s" if len(clients) > 1 else ""
        raise FedwardenError(
            f"client{plural} {listed([repr(c) for c in clients])} had no weight in any round of run {run.id}; "
            "there is nothing to roll back"
        )
    if before is not None and not 1 <= before <= last:
        raise FedwardenError(f"run {run.id} has no round {before}; expected 1 to {last}")
    there = {*series.rounds.tolist()}
    lost = next(t for t in count(1) if t not in there)  # nothing is known of a round that a repair left out
    upto = min(lost, inside[0] if before is None else before) - 1

    def checked(state: Any, round: int) -> tuple[int, Any]:
        if state["round"] != round:
            raise checkpoint.CheckpointError(f"it is of round {state['round']!a}")
        return round, state

    try:
        made, notes = checkpoint.newest(ledger.folder, run.id, run.identity, upto, checked)
        faults = [str(note.values["fault"]) for note in notes]
    except checkpoint.CheckpointError as error:
        made, faults = None, [str(error)]
    round, state = made or (0, None)
    return Start(inside[0], round, state, tuple(faults), sum(t <= round for t in inside))


def roll_back(ledger: Ledger, run: Run, start: Start, clients: Sequence[str], by: str, reason: str) -> Run:
    """A new run, interrupted after the round of ``start``, whose next round excludes these clients by command.

    What was said of the other run by then holds in the same rounds, and what was said later from the next one on.
    """
    folder, db = ledger.folder, ledger.db
    why = f"run {run.id} is rolled back to its round {start.round}{f': {reason}' if reason else ''}"
    with claim(folder, run.id):
        with ledger.transaction():
            kept = "name, engine, config, versions"
            head = f"INSERT INTO run ({kept}, created, state) SELECT {kept}, ?, 'interrupted' FROM run WHERE id = ?"
            new = db.execute(head, (time.time(), run.id)).lastrowid
            assert new is not None
            for table in ("client", *ROUND_TABLES, "audit", "word"):
                rest = [row["name"] for row in db.execute(f"PRAGMA table_info({table})") if row["name"] != "run"]
                of = {"round": f"CASE WHEN round <= {start.round} THEN round END"} if table == "word" else {}
                tail = "" if table in ("client", "word") else f"AND round <= {start.round}"
                columns, values = ", ".join(rest), ", ".join(of.get(name, name) for name in rest)
                db.execute(f"INSERT INTO {table} (run, {columns}) SELECT ?, {values} FROM {table} WHERE run = ? {tail}",
                           (new, run.id))  # fmt: skip
            for client in dict.fromkeys(clients):
                word.put(ledger, new, "exclude", client, by, why)
        found = ledger.run(new)
        if start.round:  # if this is cut off, the same rounds are played again from the first one
            checkpoint.save(checkpoint.checkpoint_path(folder, new, start.round), start.state, found.identity)
    return found
