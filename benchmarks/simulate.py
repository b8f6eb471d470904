"""How fast a simulated round is beside a plain loop over the clients, and a whole run from the command line.

    python benchmarks/simulate.py               about five minutes
    python benchmarks/simulate.py --quick       about a minute
    python benchmarks/simulate.py --device cuda     whole runs on a GPU alone; needs FEMNIST

Prints Markdown. The plain loop is ``plain.py``: one client after another, one thread, torch's own optimisers. Loop and
simulator take turns, and a ratio is that of two neighbouring rounds from the same global model.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import plain
import torch
from common import at_least, machine, say, seconds, show, spread
from torch import Tensor, nn

import fedwarden as fw
from fedwarden.core.registry import make
from fedwarden.sim.data.sources import Dataset, folders
from fedwarden.sim.models import build_model
from fedwarden.sim.training.engine import Engine, choose_group
from fedwarden.sim.training.limits import cores
from fedwarden.sim.training.optimizer import LocalTraining
from fedwarden.sim.training.pool import Pool


@dataclass(frozen=True)
class Scene:
    """Some clients with as many samples each, a model, its training, and how many times faster a round should be."""

    title: str
    clients: int
    samples: int
    model: str
    plain: Callable[[], nn.Module]
    training: LocalTraining
    bar: float


SGD = LocalTraining("sgd", lr=0.1, epochs=1, batch_size=32)
ADAM = LocalTraining("adam", lr=1e-3, epochs=3, batch_size=10)
SCENES = (
    *(Scene("MLP 784-128-10, SGD, batch 32, 1 epoch", n, 500, "mlp", plain.Mlp, SGD, 4.0) for n in (10, 50, 100)),
    Scene("PID-MADE CNN, Adam, batch 10, 3 epochs", 20, 400, "pid_made_cnn", plain.Cnn, ADAM, 3.0),
)


def has(name: str) -> bool:
    return any((place / name).is_file() for place in folders())


def data_of(samples: int) -> tuple[str, Dataset]:
    """MNIST where its file is found, else random images with labels that can be learned."""
    if has("mnist.npz"):
        found: Dataset = make("dataset", "mnist")
        return "MNIST", replace(found, x_train=found.x_train[:samples].contiguous(), y_train=found.y_train[:samples])
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(samples + 2000, 1, 28, 28, generator=generator)
    y = (x.flatten(1) @ torch.randn(784, 10, generator=generator)).argmax(dim=1)
    return "random images", Dataset(x[:samples], y[:samples], x[samples:], y[samples:], classes=10)


class Ours:
    """The simulator's way of playing a round: an engine, a pool of worker processes, the mean behind admission."""

    def __init__(self, scene: Scene, data: Dataset) -> None:
        recipe: dict[str, Any] = {"name": scene.model, "options": {}, "shape": list(data.shape), "classes": 10}
        self.model = build_model(**recipe, seed=0)
        rows = np.arange(scene.clients * scene.samples).reshape(scene.clients, scene.samples)
        self.rows = {str(i): r for i, r in enumerate(rows)}
        engine = Engine(self.model, scene.training, 0, data.x_train, data.y_train, self.rows)
        self.engine = replace(engine, group=choose_group(engine, "auto", None))
        self.params = self.engine.layout.flatten(self.model.state_dict())
        self.pool = Pool(self.engine, recipe, cores())
        self.after, self.round = self.params, 0

    def warm_up(self) -> None:
        """Rounds until every worker has started: that takes them seconds, and until then this process trains alone."""
        self.play()
        while not all(worker.ready or not worker.alive for worker in self.pool.workers):
            self.play()

    def play(self) -> None:
        """One round from the first global model."""
        self.round += 1
        ids = tuple(self.rows)
        updates = fw.Updates.of(self.pool.train(self.params, self.round, ids), self.params)
        counts = np.array([len(r) for r in self.rows.values()], dtype=np.float64)
        outcome = fw.Warden.preset("none").step(fw.Cohort(self.round, ids, updates, counts, self.params))
        self.after = self.params + outcome.update

    def loss(self, x: Tensor, y: Tensor) -> float:
        self.model.load_state_dict(self.engine.layout.unflatten(self.after))
        with torch.no_grad():
            return float(nn.functional.cross_entropy(self.model.eval()(x), y))


class Theirs:
    """The plain loop from the same global model."""

    def __init__(self, scene: Scene, data: Dataset, params: Tensor) -> None:
        self.model, self.t = scene.plain(), scene.training
        self.x, self.y = data.x_train, data.y_train
        self.clients = list(torch.arange(scene.clients * scene.samples).split(scene.samples))
        parts = params.split([p.numel() for p in self.model.parameters()])
        self.start = [part.reshape(p.shape) for part, p in zip(parts, self.model.parameters(), strict=True)]

    def play(self) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        with torch.no_grad():
            for p, value in zip(self.model.parameters(), self.start, strict=True):
                p.copy_(value)
        plain.play_round(
            self.model, self.x, self.y, self.clients, self.t.optimizer, self.t.lr, self.t.epochs, self.t.batch_size
        )
        torch.set_num_threads(threads)


def round_row(scene: Scene, repetitions: int) -> list[Any]:
    """Round times of both, in turn."""
    say(f"rounds: {scene.title}, {scene.clients} clients")
    source, data = data_of(scene.clients * scene.samples)
    ours = Ours(scene, data)
    theirs = Theirs(scene, data, ours.params)
    with ours.pool:
        ours.warm_up()
        theirs.play()
        losses = plain.evaluate(theirs.model, data.x_test, data.y_test)[1], ours.loss(data.x_test, data.y_test)
        pairs = [(seconds(theirs.play), seconds(ours.play)) for _ in range(repetitions)]
    slow, fast = (1000 * median(pair[k] for pair in pairs) for k in (0, 1))
    ratios = [a / b for a, b in pairs]
    return [
        scene.title, f"{scene.clients} x {scene.samples}, {source}", ours.engine.group or "-", f"{slow:.0f}",
        f"{fast:.0f}", spread(ratios), "{:.3f} / {:.3f}".format(*losses),
        at_least(median(ratios), scene.bar, " times"),
    ]  # fmt: skip


def rounds_table(repetitions: int) -> None:
    header = (
        "model", "clients", "group", "plain loop, ms", "simulator, ms", "times faster (range)",
        "test loss after one round, loop / simulator", "bar",
    )  # fmt: skip
    show(
        "One round",
        header,
        [round_row(scene, repetitions) for scene in SCENES],
        f"{repetitions} rounds of each in turn, those until every worker has started left out; times are medians. "
        f"Plain loop: one thread. Simulator: {cores()} processes of one thread. Both train every client and "
        "average the models. Group: clients trained at once.",
    )


FEMNIST = """
name = "bench"
rounds = {rounds}
data = {{dataset = "femnist_digits", partition = "given", clients = 20}}
model = "pid_made_cnn"
train = {{optimizer = "adam", lr = 0.001, batch_size = 10, epochs = 3}}
guard = {{preset = "auto", policy = "observe"}}  # measure everything, exclude nobody: the same work as the loop
"""


def run_table(rounds: int, repetitions: int) -> None:
    """Whole runs in fresh processes, imports, data and evaluation included."""
    if not has("femnist_digits_iid.npz"):
        return say("run: left out, since there are no FEMNIST digits here")
    data: Dataset = make("dataset", "femnist_digits")
    assert data.clients is not None
    parts = list(data.clients[:20])
    with tempfile.TemporaryDirectory(prefix="fedwarden-bench-") as place:
        folder = Path(place)
        (folder / "scene.toml").write_text(FEMNIST.format(rounds=rounds))
        np.savez(
            folder / "data.npz", x=data.x_train, y=data.y_train, x_test=data.x_test, y_test=data.y_test,
            rows=np.concatenate(parts), sizes=np.array([len(p) for p in parts]),
        )  # fmt: skip
        env = {**os.environ, "FEDWARDEN_HOME": str(folder / "runs")}
        loop = [sys.executable, str(Path(plain.__file__)), str(folder / "data.npz"), "--rounds", str(rounds)]
        ours = [sys.executable, "-m", "fedwarden", "run", str(folder / "scene.toml"), "--quiet", "--json"]
        pairs = []
        for i in range(repetitions):
            say(f"run: {i + 1} of {repetitions}")
            pairs.append((seconds(lambda: quietly(loop, env)), seconds(lambda: quietly(ours, env))))
    slow, fast = (median(pair[k] for pair in pairs) for k in (0, 1))
    row = [
        f"PID-MADE CNN on FEMNIST digits, 20 clients, {rounds} rounds",
        f"{slow:.1f}",
        f"{fast:.1f}",
        spread([a / b for a, b in pairs]),
    ]
    show(
        "A whole run from the command line",
        ("run", "plain loop, s", "`fedwarden run`, s", "times faster (range)"),
        [row],
        f"Fresh processes, imports and evaluation after every round included, {repetitions} of each in turn. "
        "`fedwarden run` also guards, records every round and writes checkpoints.",
    )
    return None


def quietly(command: list[str], env: dict[str, str]) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed:\n{done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of the whole run; default: 5")
    parser.add_argument("--repetitions", type=int, metavar="N", help="default: 9, with --quick 3")
    parser.add_argument("--only", choices=("rounds", "run"), nargs="+", default=["rounds", "run"])
    args = parser.parse_args()
    print(f"## Simulator\n\n{machine()}.\n")
    if "rounds" in args.only:
        rounds_table(args.repetitions or (3 if args.quick else 9))
    if "run" in args.only:
        run_table(2 if args.quick and args.rounds == 5 else args.rounds, 1 if args.quick else 3)


if __name__ == "__main__":
    main()
