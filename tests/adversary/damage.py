"""A ledger with everything in it, and ways to damage it."""

import os
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedwarden.core.types import Observation, RoundRecord
from fedwarden.sim.scenario import Scenario
from fedwarden.store import outbox, schema
from fedwarden.store.ledger import Ledger

SEED = 20261115
TIMES = int(os.environ.get("FEDWARDEN_FUZZ", "1"))  # before a release five times as many cases as in every slow run
TABLES = tuple(table for table in schema.TABLES if table != "word")  # which the ledger below has not
ODD = (
    None, -1, 0, 1.5, 2**62, -(2**40), 1e300, float("inf"), "", "\x1b[2J", "[/]", "not json", "[", "{}", "[]", "null",
    "true", "3", '"text"', "[1, 2]", "[[1, 2], 3]", '["a", 5]', '[1e999, null, "x"]', "[-1]", "[99999999]",
    "[" * 5000, '{"a": ' * 200 + "1" + "}" * 200, '{"rounds": "x", "guard": 5}', "1" * 5000, '"\\ud800"', '["\\ud800"]',
    '{"excluded": 5, "accuracy": "high"}', '{"data": {"clients": 1e18}}', '{"guard": {"preset": "[/]"}}', "caf\xe9",
    b"\xff\xfe\x00", b"", b"[1, 2]", bytes(8), bytes(64), b"\xff" * 28, "nan", "x" * 100_000,
)  # fmt: skip


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
VIEWS = {
    "run": f"CREATE VIEW run AS {ENDLESS} SELECT x AS id, 'a' AS name, 0.0 AS created, 'done' AS state, 'x' AS engine, "
    "'{}' AS config, '{}' AS versions, '{}' AS summary FROM c",
    "round": f"CREATE VIEW round AS {ENDLESS} SELECT 1 AS run, x AS round, 0.0 AS finished, '{{}}' AS metrics, "
    "x'' AS clients, x'' AS flagged, x'' AS excluded, x'' AS suspended, x'' AS num_examples, x'' AS weights FROM c",
}


def config() -> dict[str, Any]:
    scenario = {
        "rounds": 6,
        "data": {"clients": 8},
        "attacks": [{"name": "label_flip", "count": 1}],
        "guard": {"preset": "none", "policy": "quarantine", "watches": [
            {"name": "far", "signal": "centroid_distance", "rule": {"name": "robust_z", "limit": 6.0}}]},
    }  # fmt: skip
    return Scenario.model_validate(scenario).model_dump(mode="json")


def fill(folder: Path, played: Sequence[RoundRecord]) -> Path:
    """A sound ledger: run 1 is a simulation that is done, run 2 another engine's with an audit and without an end."""
    with Ledger(folder) as ledger:
        one = ledger.start("first", "in-process", config(), {"python": "3"})
        two = ledger.start("second [x]", "flower", {"rounds": 6}, {})
        for record in played:
            ids = {c: str(i) for i, c in enumerate("abcdefgh")}
            parts = {"layer": record.watches[0].signal}
            ledger.append(one, replace(
                record,
                client_ids=tuple(ids[c] for c in record.client_ids),
                excluded=tuple(ids[c] for c in record.excluded),
                rejected=tuple(replace(r, client_id=ids[r.client_id]) for r in record.rejected),
                watches=tuple(replace(w, parts=parts) for w in record.watches),
                reported={"train/loss": {ids[c]: 0.5 for c in record.client_ids}},
            ))  # fmt: skip
            ledger.append(two, record)
        ledger.finish(one, "done", {"accuracy": 0.6, "excluded": {"7": 2}})
        seen = [Observation(t, "outputs", "mean_logits", "", 0.5, 0.4, 1.0, 0.2, t == 5, {"3": 4.0}) for t in (4, 5, 6)]
        ledger.observe(two, seen, "a")
        sink = {"name": "webhook", "url": "http://127.0.0.1:9/"}
        outbox.put(ledger, one, "webhook", sink, 6, [{"text": "h is excluded"}])
    return folder


def flip(path: Path, rng: random.Random) -> None:
    """Change up to eight bytes, or a whole piece."""
    content = bytearray(path.read_bytes())
    if rng.random() < 0.2:
        at, n = rng.randrange(len(content)), rng.randrange(1, 600)
        content[at : at + n] = rng.randbytes(len(content[at : at + n]))
    elif rng.random() < 0.1:
        del content[rng.randrange(len(content)) :]
    else:
        for _ in range(rng.randrange(1, 9)):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def change(path: Path, rng: random.Random) -> str:
    """Change one cell of a table to something that was never written."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        table = rng.choice(TABLES)
        column = rng.choice([row[1] for row in db.execute(f"PRAGMA table_info({table})")])
        keys = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[5]]
        key = rng.choice(db.execute(f"SELECT {', '.join(keys)} FROM {table}").fetchall())
        where = " AND ".join(f"{k} = ?" for k in keys)
        value = rng.choice(ODD)
        cast = "CAST(? AS TEXT)" if isinstance(value, bytes) and rng.random() < 0.7 else "?"
        try:
            db.execute(f"UPDATE {table} SET {column} = {cast} WHERE {where}", (value, *key))
        except sqlite3.Error:  # a constraint of SQLite's own
            if column != "id":
                db.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT) WHERE {where}", (b"\xc3\x28", *key))
        return f"{table}.{column} = {value!r:.60}"
