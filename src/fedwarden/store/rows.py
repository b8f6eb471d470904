"""A round as rows of the ledger's tables."""

from __future__ import annotations

import json
import time

from ..core.types import RoundRecord
from . import cells
from .cells import utf8

Row = tuple[object, ...]


def round_rows(run: int, record: RoundRecord) -> dict[str, list[Row]]:
    """The rows of a round by table, each in the order of its columns."""
    key = (run, record.round)
    head = (
        *key, time.time(), json.dumps(record.client_ids), cells.array(record.num_examples),
        cells.array(record.weights), cells.places(record.flagged), json.dumps(record.excluded),
        json.dumps(record.suspended),
    )  # fmt: skip
    watches: list[Row] = [
        (
            run, w.name, record.round, i, cells.number(w.threshold),
            None if w.warning is None else json.dumps(w.warning.table()), w.words,
            cells.array(w.signal), cells.array(w.scores), cells.places(w.flagged), cells.arrays(w.parts),
        )
        for i, w in enumerate(record.watches)
    ]  # fmt: skip
    remarks: list[tuple[str, str | None, str]] = [
        ("rejected", utf8(r.client_id), json.dumps(r.reason.table())) for r in record.rejected
    ]
    remarks += [("note", None, json.dumps(note.table())) for note in record.notes]
    return {
        "round": [head],
        "metric": [(*key, utf8(k), cells.number(v)) for k, v in record.metrics.items()],
        "watch": watches,
        "remark": [(*key, i, *remark) for i, remark in enumerate(remarks)],
        "report": [(*key, utf8(name), cells.by_name(values)) for name, values in record.reported.items()],
    }
