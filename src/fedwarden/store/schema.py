"""The tables of the ledger, and what led from each form of them to the next, in plain statements."""

from __future__ import annotations

BEFORE = 3  # schemas of before the first release, which are not read any more
AS_NOTE = "json_object('kind', 'text', 'clients', json_array(), 'values', json_object('text', {}))"
MIGRATIONS = (  # what leads from each schema to the next
    (
        """CREATE TABLE run (
            id INTEGER PRIMARY KEY, name TEXT NOT NULL, created REAL NOT NULL, state TEXT NOT NULL,
            engine TEXT NOT NULL, config TEXT NOT NULL, versions TEXT NOT NULL, summary TEXT NOT NULL DEFAULT '{}'
        )""",
        """CREATE TABLE round (
            run INTEGER NOT NULL REFERENCES run, round INTEGER NOT NULL, finished REAL NOT NULL, clients TEXT NOT NULL,
            num_examples TEXT NOT NULL, weights TEXT NOT NULL, flagged TEXT NOT NULL, excluded TEXT NOT NULL,
            PRIMARY KEY (run, round)
        ) WITHOUT ROWID""",
        """CREATE TABLE metric (
            run INTEGER NOT NULL, round INTEGER NOT NULL, name TEXT NOT NULL, value REAL,
            PRIMARY KEY (run, name, round)
        ) WITHOUT ROWID""",
        """CREATE TABLE watch (
            run INTEGER NOT NULL, watch TEXT NOT NULL, round INTEGER NOT NULL, position INTEGER NOT NULL,
            threshold REAL, warning TEXT, words TEXT NOT NULL, signal TEXT NOT NULL, score TEXT NOT NULL,
            flagged TEXT NOT NULL, parts TEXT NOT NULL,
            PRIMARY KEY (run, watch, round)
        ) WITHOUT ROWID""",
        """CREATE TABLE remark (
            run INTEGER NOT NULL, round INTEGER NOT NULL, position INTEGER NOT NULL, kind TEXT NOT NULL, client TEXT,
            text TEXT NOT NULL,
            PRIMARY KEY (run, round, position)
        ) WITHOUT ROWID""",
        """CREATE TABLE audit (
            run INTEGER NOT NULL, observer TEXT NOT NULL, source TEXT NOT NULL, metric TEXT NOT NULL,
            layer TEXT NOT NULL, round INTEGER NOT NULL, position INTEGER NOT NULL, value REAL, expected REAL,
            score REAL, p REAL, alarm INTEGER NOT NULL, parts TEXT NOT NULL,
            PRIMARY KEY (run, observer, source, metric, layer, round)
        ) WITHOUT ROWID""",
        """CREATE VIEW client AS
            SELECT run, round, each.key AS position, each.value AS client,
                json_extract(num_examples, '$[' || each.key || ']') AS num_examples,
                json_extract(weights, '$[' || each.key || ']') AS weight,
                each.key IN (SELECT value FROM json_each(round.flagged)) AS flagged
            FROM round, json_each(round.clients) AS each""",
        """CREATE VIEW score AS
            SELECT run, watch, round, each.key AS position, each.value AS signal,
                json_extract(score, '$[' || each.key || ']') AS score,
                each.key IN (SELECT value FROM json_each(watch.flagged)) AS flagged
            FROM watch, json_each(watch.signal) AS each""",
    ),
    (  # a note is data: the sentences of before are free text
        "CREATE TABLE said AS SELECT * FROM remark",
        "DROP TABLE remark",
        """CREATE TABLE remark (
            run INTEGER NOT NULL, round INTEGER NOT NULL, position INTEGER NOT NULL, about TEXT NOT NULL, client TEXT,
            note TEXT NOT NULL,
            PRIMARY KEY (run, round, position)
        ) WITHOUT ROWID""",
        f"INSERT INTO remark SELECT run, round, position, kind, client, {AS_NOTE.format('text')} FROM said",
        "DROP TABLE said",
        f"UPDATE watch SET warning = {AS_NOTE.format('warning')} WHERE warning IS NOT NULL",
    ),
    ("ALTER TABLE round ADD COLUMN suspended TEXT NOT NULL DEFAULT '[]'",),  # of the excluded, who may come back
    (  # numbers of single clients: a JSON table by client
        """CREATE TABLE report (
            run INTEGER NOT NULL, round INTEGER NOT NULL, name TEXT NOT NULL, content TEXT NOT NULL,
            PRIMARY KEY (run, name, round)
        ) WITHOUT ROWID""",
    ),
    (  # what the operator says of clients; the round from which it holds is NULL until a federation takes it up
        """CREATE TABLE word (
            run INTEGER NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, client TEXT NOT NULL,
            operator TEXT NOT NULL, reason TEXT NOT NULL, said_at REAL NOT NULL, round INTEGER,
            PRIMARY KEY (run, number)
        ) WITHOUT ROWID""",
    ),
    (  # what sinks are to be sent, and whether it has arrived; see outbox.py
        """CREATE TABLE outbox (
            run INTEGER NOT NULL, sink TEXT NOT NULL, number INTEGER NOT NULL, round INTEGER NOT NULL,
            content TEXT NOT NULL, made REAL NOT NULL, tries INTEGER NOT NULL, due REAL NOT NULL, error TEXT NOT NULL,
            delivered REAL,
            PRIMARY KEY (run, sink, number)
        ) WITHOUT ROWID""",
    ),
)
SCHEMA = BEFORE + len(MIGRATIONS)
STATEMENTS = tuple(statement for migration in MIGRATIONS for statement in migration)
ROUND_TABLES = ("round", "metric", "watch", "remark", "report")
REMARKS = ("rejected", "note")  # what a remark is about: a reply, or the round
