"""The tables of the ledger in plain statements.

What a round has by client is one packed column: numbers are float64 and clients int32, the first byte the lowest, in
the order of ``round.clients``. Clients are numbered within their run, by the table ``client``.
"""

from __future__ import annotations

OLDEST, SCHEMA = 4, 9  # the schemas that are read
ROUND_TABLES = ("round", "watch", "remark", "report")
TABLES = ("run", "client", *ROUND_TABLES, "audit", "word", "outbox")
REMARKS = ("rejected", "note")  # what a remark is about: a reply, or the round
STATEMENTS = (
    """CREATE TABLE run (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL, created REAL NOT NULL, state TEXT NOT NULL,
        engine TEXT NOT NULL, config TEXT NOT NULL, versions TEXT NOT NULL, summary TEXT NOT NULL DEFAULT '{}'
    )""",
    """CREATE TABLE client (
        run INTEGER NOT NULL REFERENCES run, number INTEGER NOT NULL, name TEXT NOT NULL,
        PRIMARY KEY (run, number), UNIQUE (run, name)
    ) WITHOUT ROWID""",
    """CREATE TABLE round (
        run INTEGER NOT NULL REFERENCES run, round INTEGER NOT NULL, finished REAL NOT NULL, metrics TEXT NOT NULL,
        clients BLOB NOT NULL, flagged BLOB NOT NULL, excluded BLOB NOT NULL, suspended BLOB NOT NULL,
        num_examples BLOB NOT NULL, weights BLOB NOT NULL,
        PRIMARY KEY (run, round)
    )""",
    """CREATE TABLE watch (
        run INTEGER NOT NULL, round INTEGER NOT NULL, watch TEXT NOT NULL, position INTEGER NOT NULL,
        threshold REAL, warning TEXT, words TEXT NOT NULL, flagged BLOB NOT NULL,
        signal BLOB NOT NULL, score BLOB NOT NULL, parts TEXT NOT NULL, part BLOB NOT NULL,
        PRIMARY KEY (run, round, watch)
    )""",
    """CREATE TABLE remark (
        run INTEGER NOT NULL, round INTEGER NOT NULL, position INTEGER NOT NULL, about TEXT NOT NULL, client TEXT,
        note TEXT NOT NULL,
        PRIMARY KEY (run, round, position)
    ) WITHOUT ROWID""",
    """CREATE TABLE report (
        run INTEGER NOT NULL, round INTEGER NOT NULL, name TEXT NOT NULL, clients BLOB NOT NULL, content BLOB NOT NULL,
        PRIMARY KEY (run, round, name)
    )""",
    """CREATE TABLE audit (
        run INTEGER NOT NULL, observer TEXT NOT NULL, source TEXT NOT NULL, metric TEXT NOT NULL,
        layer TEXT NOT NULL, round INTEGER NOT NULL, position INTEGER NOT NULL, value REAL, expected REAL,
        score REAL, p REAL, alarm INTEGER NOT NULL, parts TEXT NOT NULL,
        PRIMARY KEY (run, observer, source, metric, layer, round)
    ) WITHOUT ROWID""",
    # what the operator says of clients; the round from which it holds is NULL until a federation takes it up
    """CREATE TABLE word (
        run INTEGER NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, client TEXT NOT NULL,
        operator TEXT NOT NULL, reason TEXT NOT NULL, said_at REAL NOT NULL, round INTEGER,
        PRIMARY KEY (run, number)
    ) WITHOUT ROWID""",
    # what sinks are to be sent, and whether it has arrived; see outbox.py
    """CREATE TABLE outbox (
        run INTEGER NOT NULL, sink TEXT NOT NULL, number INTEGER NOT NULL, round INTEGER NOT NULL,
        content TEXT NOT NULL, made REAL NOT NULL, tries INTEGER NOT NULL, due REAL NOT NULL, error TEXT NOT NULL,
        delivered REAL,
        PRIMARY KEY (run, sink, number)
    ) WITHOUT ROWID""",
)
