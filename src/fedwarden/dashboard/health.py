"""What programs ask: whether the ledger can be read, and the runs as numbers for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flask import Flask

from ..core.errors import FedwardenError
from ..store.ledger import Ledger
from .state import PATIENCE, Workspace

MAX_RUNS = 100  # runs whose numbers are given one by one, the newest
TEXT = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
NUMBERS: dict[str, tuple[str, Callable[[Mapping[str, Any]], float | None]]] = {
    "running": ("Whether a process writes the run", lambda row: int(row["state"] == "running")),
    "failed": ("Whether the run failed or was interrupted", lambda row: int(row["state"] in ("failed", "interrupted"))),
    "rounds": ("Committed rounds", lambda row: row["rounds"]),
    "accuracy": ("Accuracy after the last round", lambda row: row["accuracy"]),
    "excluded_clients": ("Clients that are excluded or suspended", lambda row: len(row["excluded"])),
    "last_commit_timestamp_seconds": ("When the last round was committed", lambda row: row["committed"]),
}


def register(server: Flask, workspace: Workspace) -> None:
    @server.get("/healthz")
    def healthz() -> tuple[dict[str, Any], int]:
        found = health(workspace.folder)
        return found, 200 if found["status"] == "ok" else 503

    @server.get("/metrics")
    def metrics() -> tuple[str, int, dict[str, str]]:
        try:
            return "".join(f"{line}\n" for line in exposition(workspace.briefs())), 200, TEXT
        except FedwardenError as error:
            return f"{error}\n", 503, TEXT


def health(folder: Path) -> dict[str, Any]:
    """Whether the ledger can be read now, past all that is kept of it; the ``reason`` where it cannot."""
    found: dict[str, Any] = {
        "status": "failed",
        "ledger": str(folder / "ledger.sqlite"),
        "runs": 0,
        "last_commit": None,
    }
    try:
        with Ledger(folder, read_only=True, patience=PATIENCE) as ledger:
            runs = ledger.runs()
    except (FedwardenError, OSError) as error:
        return {**found, "reason": str(error)}
    last = max((run.committed for run in runs if run.committed is not None), default=None)
    when = None if last is None else datetime.fromtimestamp(last, UTC).isoformat(timespec="seconds")
    return {**found, "status": "ok", "runs": len(runs), "last_commit": when}


def exposition(briefs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The runs in Prometheus' text format.

    >>> run = {"run": 3, "name": 'a "b"', "state": "done", "rounds": 2, "accuracy": 0.5, "excluded": ["7"],
    ...        "committed": 1.5}
    >>> [line for line in exposition([run]) if "rounds{" in line]
    ['fedwarden_run_rounds{run="3",name="a \\\\"b\\\\""} 2']
    """
    states = Counter(row["state"] for row in briefs)
    yield from _family("runs", "Runs by state", {_labels(state=state): n for state, n in states.items()})
    for name, (words, value) in NUMBERS.items():
        values = {_labels(run=row["run"], name=row["name"]): value(row) for row in briefs[:MAX_RUNS]}
        yield from _family(f"run_{name}", words, values)


def _family(name: str, words: str, values: Mapping[str, float | None]) -> Iterator[str]:
    """One gauge; what is not known has no line."""
    yield f"# HELP fedwarden_{name} {words}."
    yield f"# TYPE fedwarden_{name} gauge"
    yield from (f"fedwarden_{name}{labels} {value}" for labels, value in values.items() if value is not None)


def _labels(**values: object) -> str:
    quoted = (str(v).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for v in values.values())
    return "{" + ",".join(f'{k}="{v}"' for k, v in zip(values, quoted, strict=True)) + "}"
