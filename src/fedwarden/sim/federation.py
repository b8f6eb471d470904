"""The in-process federation: clients train, the warden decides, the server applies the update."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import ConfigError
from ..core.registry import make
from ..core.seeds import numpy_rng
from ..core.types import Cohort, RoundRecord
from ..core.updates import Updates
from ..store import checkpoint
from ..store.ledger import Ledger, Run
from .data import Dataset
from .engine import Engine, choose_group, one_thread
from .metrics import Detection, detection, evaluate, rounds_to
from .models import build_model
from .pool import Pool, default_workers
from .scenario import Scenario
from .trainer import LocalTraining

OnRound = Callable[[RoundRecord], None]


@dataclass(frozen=True, eq=False)
class World:
    """The clients' data after the attackers have touched it, and what is held back to evaluate on."""

    data: Dataset
    x: Tensor
    y: Tensor
    rows: dict[str, NDArray[np.int64]]
    held_out: dict[str, NDArray[np.int64]]


def build_world(scenario: Scenario) -> World:
    """Load, divide, poison, and hold back the validation part of each client.

    A client of the same partition may share rows with another, so an attacker gets copies of its own.
    """
    c = scenario.data
    data: Dataset = make("dataset", c.dataset.name, **{"folder": c.folder, **c.dataset.options})
    parts = c.partition.make("partition")(data, c.clients, numpy_rng(scenario.seed, "partition"))
    xs, ys, rows, held_out, size = [data.x_train], [data.y_train], {}, {}, len(data.y_train)
    bad = scenario.attackers()
    for i, part in enumerate(parts):
        index = np.asarray(part, dtype=np.int64)
        if not len(index):
            raise ConfigError(f"client {i} of {c.clients} has no data; use fewer clients or another partition")
        if i in bad:
            x, y = data.x_train[index], data.y_train.numpy()[index]
            for k, attack in enumerate(bad[i]):
                x, y = attack.make("attack")(x, y, data.classes, numpy_rng(scenario.seed, "attack", k, str(i)))
            xs.append(x)
            ys.append(torch.from_numpy(y))
            index = np.arange(size, size + len(index))
            size += len(index)
        order = numpy_rng(scenario.seed, "validation", 0, str(i)).permutation(index)
        cut = round(c.validation * len(order))
        rows[str(i)], held_out[str(i)] = np.sort(order[cut:]), np.sort(order[:cut])
    if len(xs) == 1:
        return World(data, xs[0], ys[0], rows, held_out)
    return World(data, torch.cat(xs), torch.cat(ys), rows, held_out)


def find_device(name: str) -> torch.device:
    """The torch device of that name, if this machine has it."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"train.device {name!r} cannot be used here ({reason}); 'cpu' always can") from error
    return device


class Federation:
    """The server and its clients; ``play`` yields the record of each round and changes the state."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = build_world(scenario)
        data, train = self.world.data, scenario.train
        self.device = find_device(train.device)
        self.recipe: dict[str, Any] = {
            "name": scenario.model.name,
            "options": scenario.model.options,
            "shape": list(data.shape),
            "classes": data.classes,
        }
        self.model = build_model(**self.recipe, seed=scenario.seed).to(self.device)
        self.clients = tuple(self.world.rows)
        self.warden = scenario.guard.build(frozenset(self.clients))
        local = LocalTraining(**train.model_dump(include={f.name for f in fields(LocalTraining)}))
        engine = Engine(
            self.model, local, scenario.seed, self.world.x, self.world.y, self.world.rows, device=self.device
        )
        self.engine = replace(engine, group=choose_group(engine, train.trainer, train.group))
        self.params = self.engine.layout.flatten(self.model.state_dict())
        self.round = 0

    def state_dict(self) -> dict[str, Any]:
        return {"round": self.round, "params": self.params, "warden": self.warden.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.round = int(state["round"])
        self.params = state["params"].to(self.device)
        self.warden.load_state_dict(state["warden"])

    def play(self) -> Iterator[RoundRecord]:
        """The rounds that are left."""
        train = self.scenario.train
        workers = train.workers or default_workers()
        with Pool(self.engine, self.recipe, workers, self.scenario.imports) as pool:
            while self.round < self.scenario.rounds:
                with one_thread():
                    record = self._step(pool)
                yield record

    def _step(self, pool: Pool) -> RoundRecord:
        t = self.round + 1
        chosen = self._choose(t)
        models = pool.train(self.params, t, chosen)
        counts = np.array([len(self.world.rows[c]) for c in chosen], dtype=np.float64)
        rows = models.to(self.device)
        updates = (
            Updates.of(rows, self.params, self.engine.layout.measured) if chosen else Updates.empty(len(self.params))
        )
        outcome = self.warden.step(Cohort(t, tuple(chosen), updates, counts, self.params))
        self.params = self.params + outcome.update.to(torch.float32)
        self.round = t
        return replace(outcome.record, metrics=self._evaluate())

    def _choose(self, t: int) -> list[str]:
        asked = [c for c in self.clients if self.warden.asks(c)]
        share = self.scenario.train.participation
        if share == 1.0 or not asked:
            return asked
        take = max(1, round(share * len(asked)))
        picks = numpy_rng(self.scenario.seed, "participation", t).permutation(len(asked))[:take]
        return [asked[i] for i in sorted(picks)]

    def _evaluate(self) -> dict[str, float]:
        """Clean accuracy and loss on the test set; where clients hold data back, their own mean accuracy too."""
        data = self.world.data
        self.model.load_state_dict(self.engine.layout.unflatten(self.params))
        accuracy, loss = evaluate(self.model, data.x_test.to(self.device), data.y_test.to(self.device))
        metrics = {"accuracy": accuracy, "loss": loss}
        own = [
            evaluate(self.model, self.world.x[rows].to(self.device), self.world.y[rows].to(self.device))[0]
            for c in self.clients
            if len(rows := self.world.held_out[c]) and self.warden.asks(c)
        ]
        if own:
            metrics["clients_accuracy"] = float(np.mean(own))
        return metrics


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run: its number, its rounds, and how the guard did."""

    run: int
    name: str
    records: list[RoundRecord]
    detection: Detection
    summary: dict[str, Any]
    params: Tensor


def simulate(
    scenario: Scenario,
    folder: Path | None = None,
    resume: str | int | None = None,
    on_round: OnRound | None = None,
    on_start: Callable[[int, Federation], None] | None = None,
) -> Result:
    """Run a scenario and record it; ``resume`` continues a run that was cut off, to the same end."""
    with Ledger(folder) as ledger:
        federation = Federation(scenario)
        if resume is None:
            run = ledger.start(scenario.name, "in-process", scenario.model_dump(mode="json"), versions())
        else:
            run = _continue(ledger, ledger.run(resume), federation)
        if on_start:
            on_start(run, federation)
        try:
            for record in federation.play():
                every = scenario.checkpoint_every
                if record.round % every == 0 or record.round == scenario.rounds:
                    checkpoint.save(checkpoint_path(ledger.folder, run, record.round), federation.state_dict())
                ledger.append(run, record)
                _forget(ledger.folder, run, record.round - every)
                if on_round:
                    on_round(record)
        except BaseException as error:
            ledger.finish(run, "interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise
        records = ledger.records(run)
        found = detection(records, [str(i) for i in sorted(scenario.attackers())])
        summary = summarise(records, found, scenario.target)
        ledger.finish(run, "done", summary)
        return Result(run, scenario.name, records, found, summary, federation.params)


def summarise(records: Sequence[RoundRecord], found: Detection, target: float | None) -> dict[str, Any]:
    """A run in a few numbers."""
    accuracies = {r.round: r.metrics["accuracy"] for r in records if "accuracy" in r.metrics}
    caught = [found.first_excluded[c] for c in found.caught]
    return {
        "rounds": len(records),
        "accuracy": accuracies[max(accuracies)] if accuracies else None,
        "rounds_to_target": None if target is None else rounds_to(accuracies, target),
        "attackers": len(found.attackers),
        "caught": len(found.caught),
        "wronged": len(found.wronged),
        "last_catch": max(caught) if caught else None,
        "excluded": dict(found.first_excluded),
    }


def versions() -> dict[str, str]:
    """What a run's numbers depend on besides its configuration."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "machine": platform.machine(),
    }


def checkpoint_path(folder: Path, run: int, round: int) -> Path:
    return folder / "checkpoints" / str(run) / f"round-{round:06d}.safetensors"


def _forget(folder: Path, run: int, before: int) -> None:
    """Remove checkpoints older than the one before the last: the ledger has caught up with the last."""
    for path in checkpoint_path(folder, run, 0).parent.glob("round-*.safetensors"):
        if int(path.stem.removeprefix("round-")) < before:
            path.unlink(missing_ok=True)


def _continue(ledger: Ledger, run: Run, federation: Federation) -> int:
    """Bring the federation to the newest checkpoint whose round is committed; without one it starts anew.

    Rounds after the checkpoint are played again, to the same numbers.
    """
    config = federation.scenario.model_dump(mode="json")
    changed = [k for k in config if run.config.get(k) != config[k] and k != "rounds"]
    if changed:
        raise ConfigError(f"run {run.id} was started with other settings of {', '.join(changed)}; resume it unchanged")
    for t in range(ledger.last_round(run.id), 0, -1):
        path = checkpoint_path(ledger.folder, run.id, t)
        if path.is_file():
            federation.load_state_dict(checkpoint.load(path))
            break
    ledger.reopen(run.id, config)
    return run.id
