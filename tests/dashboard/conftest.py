"""A workspace with a guarded run and an audited one, its dashboard, and callbacks as a browser asks for them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="the extra 'dashboard' is not installed")

import fedwarden as fw
from fedwarden.core.types import Observation, RoundRecord
from fedwarden.dashboard.app import create_app
from fedwarden.guard.config import guard_table
from fedwarden.store.ledger import Ledger

WATCH = fw.Watch("centroid_distance", "raw", {"name": "robust_z", "limit": 6.0}, name="far")


def fill(folder: Path, played: Sequence[RoundRecord]) -> Path:
    """Run 1 is guarded, run 2 is not and has an audit by client 7."""
    config = {"rounds": 6, "guard": guard_table(fw.Warden([WATCH], "quarantine"))}
    with Ledger(folder) as ledger:
        run = ledger.start("guarded", "flower", config, {})
        for record in played:
            layers = {"conv": record.watches[0].signal / 2, "head": record.watches[0].signal * 2}
            ledger.append(run, replace(record, watches=(replace(record.watches[0], parts=layers),)))
        ledger.finish(run, "done", {"accuracy": 0.6, "excluded": ["h"]})
        plain = ledger.start("plain", "flower", {"rounds": 6}, {})
        for record in played:
            ledger.append(
                plain, replace(record, watches=(), excluded=(), rejected=(), notes=(), flagged=record.flagged & False)
            )
        seen = [
            Observation(t, "weights", "cosine", "", 0.5 + 0.1 * hit, 0.5, 0.2 + 9 * hit, 0.8 - 0.799 * hit, hit)
            for t, hit in ((t, t == 5) for t in range(2, 7))
        ]
        ledger.observe(plain, seen, "7")
        ledger.finish(plain, "interrupted")
    return folder


@pytest.fixture
def home(tmp_path: Path, played: Sequence[RoundRecord]) -> Path:
    return fill(tmp_path / "home", played)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, played: Sequence[RoundRecord]) -> Path:
    """The same workspace for tests that only read."""
    return fill(tmp_path_factory.mktemp("shared") / "home", played)


class Asker:
    """Sends a callback's inputs as a browser does, and returns what it would change."""

    def __init__(self, app: Any) -> None:
        self.app, self.client = app, app.server.test_client()

    def __call__(self, output: str, **values: object) -> Any:
        """``output`` is some part of the callback's outputs; values are given as ``id__property``."""
        key = next(k for k in self.app.callback_map if output in k)
        found = self.app.callback_map[key]
        given = {k.replace("__", "."): v for k, v in values.items()}

        def fields(specs: Sequence[dict[str, str]]) -> list[dict[str, object]]:
            return [{**spec, "value": given.get(f"{spec['id']}.{spec['property']}")} for spec in specs]

        outputs = [
            dict(zip(("id", "property"), part.rsplit(".", 1), strict=True)) for part in key.strip(".").split("...")
        ]
        body = {
            "output": key,
            "outputs": outputs if key.startswith("..") else outputs[0],
            "inputs": fields(found["inputs"]),
            "state": fields(found["state"]),
            "changedPropIds": [],
        }
        answer = self.client.post("/_dash-update-component", json=body)
        assert answer.status_code in (200, 204), answer.text
        return json.loads(answer.text) if answer.status_code == 200 else {}


@pytest.fixture
def asker() -> Callable[[Path], Asker]:
    return lambda folder: Asker(create_app(folder))
