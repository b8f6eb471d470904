"""What guarding costs a Flower strategy, and how Flower's simulation engine compares with the one in process.

    python benchmarks/flower.py               about half an hour
    python benchmarks/flower.py --quick       a few minutes
    python benchmarks/flower.py --table       the bad replies against the strategies alone and guarded; a minute

Prints Markdown. The guarded and the plain strategy take turns on the same replies, and a ratio is that of neighbours.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from common import at_least, at_most, machine, say, seconds, show, spread
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from fedwarden.flower import Guarded
from fedwarden.sim import on_flower
from fedwarden.sim.data.sources import folders
from fedwarden.sim.federation import Federation, simulate
from fedwarden.sim.scenario import load_scenario
from fedwarden.sim.training.limits import cores
from fedwarden.sim.training.pool import Pool

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from flower import test_strategy as grid
from flower.nodes import BAD_REPLIES, LocalGrid, bad, honest, state

OFFLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
SIZES = ((20, 1_200_000), (50, 11_200_000))
LAYERS = 20
TURNS = 3  # runs of each engine: a slow minute of the machine should meet both


def replies_of(n: int, d: int) -> tuple[ArrayRecord, LocalGrid]:
    """A model of some layers, and n nodes that answer with models near it, made once."""
    rng, part = np.random.default_rng(0), d // LAYERS
    names = [f"layer{i}" for i in range(LAYERS)]
    arrays = ArrayRecord({name: Array(rng.normal(size=part).astype(np.float32)) for name in names})
    start = {name: array.numpy() for name, array in arrays.items()}

    def near() -> ArrayRecord:
        return ArrayRecord({k: Array(v + 0.01 * rng.normal(size=part).astype(np.float32)) for k, v in start.items()})

    models = {node: near() for node in range(2, n + 2)}

    def answer(node: int) -> Callable[[Message], list[Message]]:
        metrics = MetricRecord({"num-examples": 100, "train_loss": 0.5})
        return lambda m: [Message(RecordDict({"arrays": models[node].copy(), "metrics": metrics}), reply_to=m)]

    return arrays, LocalGrid({node: answer(node) for node in models})


def overhead_row(n: int, d: int, repetitions: int) -> list[Any]:
    say(f"overhead: n = {n}, d = {d:,}")
    arrays, nodes = replies_of(n, d)

    def aggregate(strategy: Any) -> float:
        """Seconds of aggregate_train, the replies being there already."""
        sent = list(strategy.configure_train(1, arrays, ConfigRecord(), nodes))
        replies = nodes.send_and_receive(sent)
        return seconds(lambda: strategy.aggregate_train(1, replies))

    aggregate(Guarded(FedAvg()))  # compiles the kernels
    pairs = [(aggregate(FedAvg()), aggregate(Guarded(FedAvg()))) for _ in range(repetitions)]
    alone, guarded = (1000 * median(pair[k] for pair in pairs) for k in (0, 1))
    extra = [(b - a) / a for a, b in pairs]
    gc.collect()
    return [
        n, f"{d:,}", f"{alone:.0f}", f"{guarded:.0f}", spread(extra), at_most(median(extra), 1.0, " aggregation"),
    ]  # fmt: skip


def overhead_table(sizes: tuple[tuple[int, int], ...], repetitions: int) -> None:
    header = ("n", "d", "FedAvg, ms", "Guarded(FedAvg), ms", "extra, in aggregations of FedAvg (range)", "bar")
    note = f"{repetitions} rounds of each in turn on the same replies; the guard is `auto`, without the ledger."
    show("What the guard adds to a round", header, [overhead_row(n, d, repetitions) for n, d in sizes], note)


MLP = """
name = "bench"
rounds = {rounds}
data = {{dataset = "mnist", clients = {clients}, limit = {samples}}}
model = {{name = "mlp", hidden = [128]}}
train = {{lr = 0.1, batch_size = 32}}
guard = {{preset = "none"}}
"""
CNN = """
name = "bench"
rounds = {rounds}
data = {{dataset = "femnist_digits", partition = "given", clients = {clients}}}
model = "pid_made_cnn"
train = {{optimizer = "adam", lr = 0.001, batch_size = 10, epochs = 3}}
guard = {{preset = "none"}}
"""


class Timed:
    """A trainer that notes how long each round's training takes, messages included."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.times = trainer, list[float]()

    def train(self, *args: Any) -> Any:
        start = perf_counter()
        models = self.trainer.train(*args)
        self.times.append(perf_counter() - start)
        return models


def child(engine: str, scene: str) -> None:
    """Run a scenario and print the seconds that the clients' part of each round took."""
    scenario, timed = load_scenario(Path(scene)), list[Timed]()

    def watch(trainer: Any) -> Timed:
        timed.append(Timed(trainer))
        return timed[0]

    if engine == "flower":
        real = on_flower.GridTrainer
        on_flower.GridTrainer = lambda *args: watch(real(*args))  # type: ignore[assignment, misc]
        on_flower.simulate_on_flower(scenario)
    else:
        federation = Federation(scenario)
        with Pool(federation.engine, federation.recipe, cores()) as pool:
            simulate(scenario, trainer=watch(pool))
    print(json.dumps(timed[0].times))


def engine_row(title: str, scene: str, clients: int, rounds: int, bar: float | None) -> list[Any]:
    """The same scenario on both engines in turn, in processes of their own; the first round of each is left out."""
    say(f"engines: {title}, {clients} clients")
    times: dict[str, list[float]] = {"in-process": [], "flower": []}
    wholes: dict[str, list[float]] = {"in-process": [], "flower": []}
    with tempfile.TemporaryDirectory(prefix="fedwarden-bench-") as place:
        folder = Path(place)
        (folder / "scene.toml").write_text(scene.format(rounds=rounds, clients=clients, samples=500 * clients))
        for turn, engine in enumerate(("in-process", "flower") * TURNS):
            home = str(folder / f"{engine}-{turn}")
            env = {**os.environ, **OFFLINE, "FEDWARDEN_HOME": home, "PYTHONWARNINGS": "ignore"}
            command = [sys.executable, __file__, "--child", engine, str(folder / "scene.toml")]
            start = perf_counter()
            done = subprocess.run(command, env=env, check=True, timeout=1800, stdout=subprocess.PIPE, text=True)
            wholes[engine].append(perf_counter() - start)
            times[engine] += json.loads(done.stdout.splitlines()[-1])[1:]
    (a, b), (whole_a, whole_b) = (map(median, found.values()) for found in (times, wholes))
    met = at_least(b / a, bar, " times")
    row = [title, clients, f"{1000 * b:.0f}", f"{1000 * a:.0f}", f"{b / a:.1f}", f"{whole_b / whole_a:.1f}", met]
    say(" | ".join(map(str, row)))  # a long benchmark may be cut off
    return row


def engine_table(counts: tuple[int, ...], rounds: int) -> None:
    rows = []
    if any((place / "mnist.npz").is_file() for place in folders()):
        for n in counts:
            rows.append(engine_row("MLP 784-128-10, 500 samples each", MLP, n, rounds, 10.0))
    if any((place / "femnist_digits_iid.npz").is_file() for place in folders()) and len(counts) > 1:
        rows.append(engine_row("PID-MADE CNN, FEMNIST digits", CNN, 20, rounds, None))
    header = (
        "scenario", "clients", "Flower, ms a round", "in process, ms a round", "ratio",
        "ratio, whole run", "bar",
    )  # fmt: skip
    show(
        "The same scenario on both engines",
        header,
        rows,
        f"Medians of {TURNS} runs of {rounds} rounds on each engine in turn; a round is the clients' part of it, "
        "messages included, the first left out. Clients on Flower train with the simulator's own loop.",
    )


def fate(strategy: Any, kind: str, fair: tuple[ArrayRecord, ArrayRecord]) -> str:
    """What becomes of the model of one round when one node of eight answers badly."""
    crowd = {node: bad(kind, node) if node == grid.BAD else honest(node) for node in grid.NODES}
    try:
        arrays, _ = grid.one_round(strategy, crowd)
        if arrays is None:
            return "no model"
        if not all(np.isfinite(v).all() for v in state(arrays).values()):
            return "model NaN"
        return "right model" if any(alike(arrays, model) for model in fair) else "wrong model"
    except Exception:
        return "crash"


def alike(a: ArrayRecord, b: ArrayRecord) -> bool:
    try:
        grid.close(a, b)
    except AssertionError:
        return False
    return True


def fair_models(base: Callable[[], Any]) -> tuple[ArrayRecord, ArrayRecord]:
    """The strategy's own models of honest nodes, with and without the one that answers badly elsewhere."""
    crowds = [{n: honest(n) for n in grid.NODES if used or n != grid.BAD} for used in (True, False)]
    one, other = (grid.one_round(base(), crowd)[0] for crowd in crowds)
    return one, other


def bad_reply_table() -> None:
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    np.seterr(all="ignore")
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    fair = {name: fair_models(base) for name, base in grid.BASES.items()}
    rows = []
    for kind in BAD_REPLIES:
        say(kind)
        alone: dict[str, list[str]] = {}
        guarded = set()
        for name, base in grid.BASES.items():
            if kind != "a terabyte":  # which a strategy alone would try to allocate
                alone.setdefault(fate(base(), kind, fair[name]), []).append(name)
            guarded.add(fate(Guarded(base()), kind, fair[name]))
        told = [f"{word} ({len(names)})" for word, names in sorted(alone.items(), key=lambda item: -len(item[1]))]
        rows.append([kind, ", ".join(told) or "not tried", ", ".join(sorted(guarded))])
    header = ("one node of eight answers with", f"{len(grid.BASES)} strategies alone", "the same, guarded")
    show("Bad replies, before and after", header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--only", choices=("overhead", "engines"), help="one of the two parts")
    parser.add_argument("--rounds", type=int, default=11, help="rounds of every measurement; with --quick 5")
    parser.add_argument("--clients", type=int, nargs="+", metavar="N", help="of the engines; default: 10, 50 and 100")
    parser.add_argument("--child", nargs=2, metavar=("ENGINE", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.update(OFFLINE)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    if options.child:
        return child(*options.child)
    if options.table:
        return bad_reply_table()
    print(f"{machine()}\n")
    rounds = 5 if options.quick else options.rounds
    if options.only != "engines":
        overhead_table(SIZES[:1] if options.quick else SIZES, rounds)
    if options.only != "overhead":
        engine_table(tuple(options.clients or ((10,) if options.quick else (10, 50, 100))), rounds)
    return None


if __name__ == "__main__":
    main()
