"""A ledger with one short run of known numbers, and a folder of one's own."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from mlflow.tracking import MlflowClient

from fedwarden.core.notes import Note
from fedwarden.core.types import Rejection, RoundRecord, WatchRecord
from fedwarden.store.ledger import Ledger

HOSTILE = ("a/b", "a:2Fb", "..", "", "x y", "é", "{}\"'\n", "n" * 300, "<script>", "~")


def round_of(
    t: int,
    clients: Sequence[str],
    rejected: Sequence[tuple[str, str]] = (),
    excluded: Sequence[str] = (),
    metrics: Mapping[str, float] | None = None,
    watches: Sequence[str] = ("near", "far"),
) -> RoundRecord:
    """Client i has the score 10 t + i, half of that as its signal; the last one is flagged by every watch."""
    n = len(clients)
    last = np.arange(n) == n - 1
    scores = 10.0 * t + np.arange(n, dtype=np.float64)
    return RoundRecord(
        t,
        tuple(clients),
        np.full(n, 100.0),
        np.where(last, 0.0, 1.0 / max(1, n - 1)),
        tuple(WatchRecord(name, scores / 2, scores, 10.0 * t + n - 1.5, last) for name in watches),
        last,
        tuple(excluded),
        tuple(Rejection(c, Note.text(why)) for c, why in rejected),
        (),
        {"accuracy": 0.5 + 0.1 * t, "train/loss": 1.0 / t, "broken": math.nan} if metrics is None else metrics,
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes a second to make its tables."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def database(empty_database: Path, tmp_path: Path) -> str:
    """The address of a database that MLflow may write to."""
    return f"sqlite:///{shutil.copy(empty_database, tmp_path)}"


@pytest.fixture
def ledger(home: Path) -> Iterator[Ledger]:
    with Ledger() as opened:
        yield opened


@pytest.fixture
def run(ledger: Ledger) -> int:
    """Three rounds; in the second a stranger is rejected, in the third 'c' is out for good and not asked."""
    number = ledger.start("demo", "in-process", {}, {})
    ledger.append(number, round_of(1, "abc"))
    ledger.append(number, round_of(2, "abc", rejected=[("stranger", "2 arrays, expected 4")], excluded="c"))
    ledger.append(number, round_of(3, "ab", excluded="c"))
    return number
