"""How fast a simulated round is beside pfl-research, Apple's simulator, in two processes of one thread each.

    make peers
    .venv-peers/bin/python benchmarks/pfl_research.py               about ten minutes
    .venv-peers/bin/python benchmarks/pfl_research.py --quick       two minutes

Prints Markdown. Both train every client of the scenes of ``simulate.py`` on the same samples and average the models, in
processes of their own, in turn; evaluation is left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import environ
from statistics import median
from time import perf_counter
from typing import Any

import torch
from common import at_least, machine, say, seconds, show
from simulate import SCENES, Ours, Scene, data_of
from torch.nn import functional as F

BARS = {"mlp": 3.0, "pid_made_cnn": 2.0}  # times as fast
PROCESSES = 2
OPTIMIZERS: dict[str, Callable[..., Any]] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


@dataclass
class Rounds:
    """A callback of pfl's loop that notes when every round ended."""

    ends: list[float]

    def on_train_begin(self, *, model: Any) -> Any:
        from pfl.metrics import Metrics

        self.ends.append(perf_counter())
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        from pfl.metrics import Metrics

        self.ends.append(perf_counter())
        return False, Metrics()

    def on_train_end(self, *, model: Any) -> None:
        return None


def play_pfl(scene: Scene, rounds: int) -> None:
    """Rounds of federated averaging under pfl; rank 0 prints the seconds of each."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.internal.ops.selector import get_framework_module
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    _, data = data_of(scene.clients * scene.samples)
    rows = dict(enumerate(torch.arange(scene.clients * scene.samples).split(scene.samples)))

    class Net(scene.plain):  # type: ignore[misc, name-defined]
        """The plain model with the two methods that pfl asks for."""

        def loss(self, x: Any, y: Any, is_eval: bool = False) -> Any:
            self.train(not is_eval)
            return F.cross_entropy(self(x), y)

        def metrics(self, x: Any, y: Any) -> dict[str, Any]:
            return {}

    model = Net()
    ours = PyTorchModel(model, OPTIMIZERS[scene.training.optimizer], torch.optim.SGD(model.parameters(), lr=1.0))

    def samples_of(client: int) -> Any:
        order = rows[client][torch.randperm(scene.samples)]
        return Dataset(raw_data=[data.x_train[order], data.y_train[order]])

    clients = FederatedDataset(samples_of, get_user_sampler("minimize_reuse", list(rows)))
    callback = Rounds([])
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=10**6, train_cohort_size=scene.clients,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=clients, val_data=clients),
        model=ours,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=scene.training.epochs, local_learning_rate=scene.training.lr,
            local_batch_size=scene.training.batch_size,
        ),
        callbacks=[callback],
        send_metrics_to_platform=False,
    )  # fmt: skip
    if get_framework_module().distributed.global_rank == 0:
        times = [b - a for a, b in zip(callback.ends, callback.ends[1:], strict=False)]
        print(json.dumps(times[1:]), flush=True)


def play_ours(scene: Scene, rounds: int) -> None:
    """The same rounds in the simulator, once its workers have started, as those of pfl have before its first round."""
    _, data = data_of(scene.clients * scene.samples)
    ours = Ours(scene, data)
    with ours.pool:
        ours.warm_up()
        print(json.dumps([seconds(ours.play) for _ in range(rounds - 1)]), flush=True)


def child(engine: str, scene: int, rounds: int) -> list[float]:
    """Seconds of each round but the first, from processes of their own."""
    alone = [sys.executable, __file__]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)]
    command = alone if engine == "fedwarden" else [*torchrun, __file__]
    env = {**environ, "OMP_NUM_THREADS": "1"} if engine == "pfl" else dict(environ)
    command += ["--child", engine, str(scene), str(rounds)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        raise SystemExit(f"{engine} failed:\n{done.stderr[-3000:]}")
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and turns")
    parser.add_argument("--scenes", type=int, nargs="+", metavar="K", help="some of the scenes, from 0")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        play = play_ours if args.child[0] == "fedwarden" else play_pfl
        return play(replace(SCENES[int(args.child[1])]), int(args.child[2]))
    rounds, turns = (4, 1) if args.quick else (9, 2)
    print(f"{machine()}\n")
    rows = []
    for k, scene in enumerate(SCENES):
        if args.scenes and k not in args.scenes:
            continue
        times: dict[str, list[float]] = {"pfl": [], "fedwarden": []}
        for engine in (*times,) * turns:
            say(f"{scene.title}, {scene.clients} clients: {engine}")
            times[engine] += child(engine, k, 3 if scene.model == "pid_made_cnn" and args.quick else rounds)
        theirs, ours = (median(found) for found in times.values())
        fastest = min(times["pfl"]) / min(times["fedwarden"])
        rows.append(
            [scene.title, f"{scene.clients} x {scene.samples}", f"{1000 * theirs:.0f}", f"{1000 * ours:.0f}",
             f"{theirs / ours:.1f}", f"{fastest:.1f}", at_least(theirs / ours, BARS[scene.model], " times")]
        )  # fmt: skip
        say(" | ".join(map(str, rows[-1])))  # a long benchmark may be cut off
    show(
        "One round beside pfl-research",
        ("model", "clients", f"pfl, {PROCESSES} processes, ms", "simulator, ms", "ratio", "of the fastest", "bar"),
        rows,
        f"Medians over {turns} runs of {rounds} rounds of each in turn, the first round of each run left out.",
    )
    return None


if __name__ == "__main__":
    main()
