"""Many clients: rounds from a thousand files and in memory, known clients, what-ifs, a simulator of ten thousand.

    python benchmarks/many.py                   about half an hour, 5 GB of disk, 3 GB of memory
    python benchmarks/many.py --quick           a minute, fewer clients
    python benchmarks/many.py --only whatif

Prints Markdown. A round is measured beside one read of the same files or of the same memory, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch
from common import at_most, fastest_read, machine, say, seconds, show, spread

import fedwarden as fw
from fedwarden.core.remembered import Remembered
from fedwarden.core.types import RoundRecord, WatchRecord
from fedwarden.guard.judge import Watch
from fedwarden.guard.replay import replay
from fedwarden.sim.federation import simulate
from fedwarden.sim.scenario import load_scenario
from fedwarden.sim.whatif import compare
from fedwarden.store.ledger import Ledger
from fedwarden.store.recorder import Recorder
from fedwarden.updates.sketch import ALL_PAIRS
from guard import GIB, clients_table, cnn, counts_of, in_fresh_process, resident, write_updates

SECTIONS = ("files", "memory", "clients", "known", "whatif", "simulator")
READS_BAR, RESIDENT_BAR, WHATIF_BAR = 6.0, 2.0, 1.0
KNOWN_BAR, KNOWN_GROWTH_BAR, KNOWN_MB_BAR = 50.0, 2.0, 200.0
GROWTH_BAR = 1.1  # times the memory with as many clients asked of a fifth as many
SCENE = """
name = "many"
rounds = 2
data = {{dataset = "mnist", clients = {clients}}}
model = {{name = "mlp", hidden = [128]}}
train = {{lr = 0.1, batch_size = 32, participation = {participation}}}
guard = {{preset = "{preset}"}}
"""


def files_table(n: int, d: int, repetitions: int, folder: str | None) -> None:
    """A steady round over memory-mapped files beside one read of them."""
    rows, threads = [], torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="fedwarden-bench-", dir=folder) as place:
        say(f"files: writing {4e-9 * n * d:.1f} GB")
        paths = [str(path) for path in write_updates(Path(place), n, d)]
        for preset in ("pid_made", "auto"):
            for cold in (True, False):
                say(f"files: {preset}, {'cold' if cold else 'cached'}")
                task = {"paths": paths, "preset": preset, "cold": cold, "threads": threads, "repetitions": repetitions}
                found = in_fresh_process("disk", task)
                ratios = [b / a for a, b in zip(found["floors"], found["ours"], strict=True)]
                peak = found["peak"] / GIB
                rows.append(
                    [preset, "cold" if cold else "cached", f"{median(found['floors']):.2f}",
                     f"{median(found['ours']):.2f}", spread(ratios), at_most(median(ratios), READS_BAR, " reads"),
                     f"{peak:.2f}", at_most(peak, RESIDENT_BAR, " GiB")]
                )  # fmt: skip
    show(
        f"{n:,} clients of {d:,} parameters from files, {4e-9 * n * d:.1f} GB",
        ("guard", "files", "one read, s", "round, s", "ratio (range)", "bar", "peak resident, GiB", "bar"),
        rows,
        f"{repetitions} repetitions in turn, {threads} threads. Cold: the files' pages are dropped before each "
        "measurement. Peak: VmRSS sampled every 5 ms by a thread, mapped pages included.",
    )


def crowd(n: int, d: int) -> torch.Tensor:
    """Updates with something in common, of two lengths."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.empty(n, d).normal_(0.0, 0.02, generator=generator)
    rows += torch.empty(d).normal_(0.0, 0.01, generator=generator)
    rows[::2] *= 1.1
    return rows


def guarded(rows: torch.Tensor) -> Callable[[], Any]:
    """A steady round of `auto`; each call judges the second round anew."""
    n = len(rows)
    warden, ids, counts = fw.Warden.preset("auto"), tuple(map(str, range(n))), counts_of(n, "unequal")
    warden.step(fw.Cohort(1, ids, fw.Updates.of(rows), counts))
    state = warden.state_dict()

    def step() -> Any:
        warden.load_state_dict(state)
        return warden.step(fw.Cohort(2, ids, fw.Updates.of(rows), counts))

    return step


def memory_table(sizes: Sequence[tuple[int, int]], repetitions: int) -> None:
    """A steady round of `auto` over updates in memory beside one read of them."""
    rows = []
    for n, d in sizes:
        say(f"memory: n = {n}, d = {d:,}")
        updates = crowd(n, d)
        step, (_, read) = guarded(updates), fastest_read(updates)
        step()
        times = [(seconds(read), seconds(step)) for _ in range(repetitions)]
        ratios = [b / a for a, b in times]
        floor, ours = (median(pair[k] for pair in times) for k in (0, 1))
        bar = at_most(median(ratios), READS_BAR if n > ALL_PAIRS else None, " reads")
        rows.append([n, f"{d:,}", f"{floor:.2f}", f"{ours:.2f}", spread(ratios), bar])
    show(
        "Many clients in memory, `auto`",
        ("n", "d", "one read, s", "round, s", "ratio (range)", "bar"),
        rows,
        f"{repetitions} repetitions in turn. Up to {ALL_PAIRS} clients inner products of all pairs are exact.",
    )


def probe_known(known: int, rounds: int, n: int = 100) -> tuple[float, float]:
    """CPU milliseconds of a recorded round of `auto`, half of it newcomers, and the megabytes that one takes."""
    warden, rng = fw.Warden.preset("auto", secret=1), np.random.default_rng(0)
    rows, counts = rng.normal(1.0, 1.0, (n, 256)), np.full(n, 10.0)
    state = warden.remembered()
    names = [f"device-{i:08d}" for i in range(known)]
    for i, width in enumerate((3, 1)):  # distance and opposition
        state["histories"][i] = Remembered.of(dict.fromkeys(names, (0.1,) * width))
    warden.load_state_dict({**state, "seen": Remembered.of(dict.fromkeys(names, (5.0,)))})

    def play(t: int) -> None:
        old = [names[i] for i in rng.integers(known, size=n // 2)]
        ids = tuple(dict.fromkeys([*(f"new {t} {i}" for i in range(n)), *old]))[-n:]
        outcome = warden.step(fw.Cohort(t, ids, fw.Updates.of(rows.copy()), counts), word=recorder.word(t))
        recorder.commit(outcome.record, lambda: {"round": t, "warden": warden.remembered()})

    times = []
    with tempfile.TemporaryDirectory(prefix="fedwarden-bench-") as place, Recorder(Path(place)) as recorder:
        recorder.start("known", "bench", {})
        for t in range(1, rounds + 1):
            start = process_time()
            play(t)
            times.append(1e3 * (process_time() - start))
        tracemalloc.start()
        play(rounds + 1)
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
    return median(times[5:]), peak


def known_table(sizes: Sequence[int], rounds: int) -> None:
    """What a round costs beside its updates, by the number of clients that the guard has seen before."""
    rows, least = [], 0.0
    for known in sizes:
        say(f"known: {known:,}")
        took, peak = probe_known(known, rounds)
        least = least or took
        rows.append([f"{known:,}", f"{took:.1f}", at_most(took, KNOWN_BAR, " ms"), f"{took / least:.2f}",
                     at_most(took / least, KNOWN_GROWTH_BAR, " times"), f"{peak:.1f}",
                     at_most(peak, KNOWN_MB_BAR, " MB")])  # fmt: skip
    show(
        "Clients that the guard knows, 100 in a round, half of them new, `auto`",
        ("known", "CPU of a round, ms", "bar", "relative", "bar", "memory of a round, MB", "bar"),
        rows,
        f"Median of {rounds - 5} rounds of 256 parameters: admission, judgement, ledger and checkpoint.",
    )


def recorded(preset: str, n: int, rounds: int, participation: float) -> list[RoundRecord]:
    """Rounds with the signals of a preset, in which three clients stand out."""
    rng, names = np.random.default_rng(0), tuple(f"client-{i}" for i in range(n))
    watches: Sequence[Watch] = [w for w in fw.Warden.preset(preset).watches if not w.optional]
    records = []
    for t in range(1, rounds + 1):
        who = np.sort(rng.choice(n, round(participation * n), replace=False))
        ids = names if len(who) == n else tuple(names[i] for i in who)
        signals: dict[str, Any] = {}
        for watch in watches:
            scale = 0.01 if watch.name in ("alone", "proof alone", "apart") else 0.1
            values = 1.0 + scale * rng.standard_normal(n) if preset == "pid_made" else scale * rng.standard_normal(n)
            values[:3] += 6 * scale
            signals.setdefault(repr(watch.signal), values[who])
        seen = [(w.name, signals[repr(w.signal)]) for w in watches]
        kept = tuple(WatchRecord(name, values, values, np.inf, np.zeros(len(who), bool)) for name, values in seen)
        ones, nobody = np.ones(len(who)), np.zeros(len(who), bool)
        metrics = {"agreement": 0.8, "update_length": 1.0}
        records.append(RoundRecord(t, ids, ones, ones / len(who), kept, nobody, (), metrics=metrics))
    return records


def whatif_table(n: int, rounds: int, repetitions: int) -> None:
    """Another guard on recorded signals, and who is treated differently."""
    rows = []
    for preset in ("pid_made", "auto"):
        for participation in (1.0, 0.5):
            say(f"whatif: {preset}, {n} x {rounds}, {participation:.0%} of the clients")
            records = recorded(preset, n, rounds, participation)
            cpu, wall = [], []

            def ask(preset: str = preset, records: list[RoundRecord] = records) -> None:
                compare(records, replay(records, fw.Warden.preset(preset)))

            for _ in range(repetitions):
                start = process_time()
                wall.append(seconds(ask))
                cpu.append(process_time() - start)
            met = at_most(min(cpu), WHATIF_BAR, " s")
            rows.append([preset, f"{participation:.0%}", spread(cpu), f"{min(cpu):.2f}", f"{median(wall):.2f}", met])
        with tempfile.TemporaryDirectory(prefix="fedwarden-bench-") as place, Ledger(Path(place)) as ledger:
            ledger.db.execute("PRAGMA synchronous = OFF")
            run = ledger.start("bench", "in-process", {}, {})
            for record in recorded(preset, n, rounds, 1.0):
                ledger.append(run, record)
            start = process_time()
            ledger.records(run)
            rows.append([preset, "reading the run", "", f"{process_time() - start:.2f}", "", "-"])
    show(
        f"What-if at {n:,} clients x {rounds} rounds",
        ("guard", "clients asked", "CPU, s (range)", "least CPU, s", "wall, s", "bar"),
        rows,
        f"Deciding again and comparing, {repetitions} times; the dashboard has read the run by then.",
    )


def probe_simulator(task: dict[str, Any]) -> dict[str, Any]:
    """In a fresh process: the highest resident memory of a run, and its workers' highest."""
    with tempfile.TemporaryDirectory(prefix="fedwarden-bench-") as place:
        scene = Path(place) / "scene.toml"
        scene.write_text(SCENE.format(**task))
        scenario = load_scenario(scene)
        took = seconds(lambda: simulate(scenario))
    workers = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {"peak": resident("VmHWM"), "workers": workers, "seconds": took}


def simulator_table(asked: int, preset: str) -> None:
    """As many clients asked of few and of many."""
    rows, first = [], 0.0
    for clients in (2 * asked, 10 * asked):
        say(f"simulator: {clients} clients")
        task = {"clients": clients, "participation": asked / clients, "preset": preset}
        command = [sys.executable, __file__, "--probe"]
        with tempfile.TemporaryDirectory(prefix="fedwarden-bench-") as home:
            env = {**os.environ, "FEDWARDEN_HOME": home}
            done = subprocess.run(
                command, input=json.dumps(task), stdout=subprocess.PIPE, text=True, env=env, check=True
            )
        found = json.loads(done.stdout.splitlines()[-1])
        peak = found["peak"] / GIB
        first = first or peak
        met = at_most(peak / first, GROWTH_BAR, " times")
        rows.append([f"{clients:,}", f"{asked:,}", f"{peak:.2f}", f"{found['workers'] / GIB:.2f}",
                     f"{found['seconds'] / 2:.1f}", f"{peak / first:.2f}", met])  # fmt: skip
    show(
        f"The simulator with many clients, MLP of 101,770 parameters, `{preset}`",
        ("clients", "asked", "peak resident, GiB", "of a worker", "a round, s", "relative", "bar"),
        rows,
        "Two rounds on MNIST in a fresh process; the updates of those asked are 0.4 MB each.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer clients")
    parser.add_argument("--only", choices=SECTIONS, nargs="+", default=list(SECTIONS), help="some of the tables")
    parser.add_argument("--repetitions", type=int, metavar="N", help="default: 3")
    parser.add_argument("--folder", help="where to put the files; default: the temporary folder")
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe:
        print(json.dumps(probe_simulator(json.loads(sys.stdin.read()))))
        return
    repetitions = args.repetitions or 3
    n, d = (100, 100_000) if args.quick else (1000, sum(cnn()))
    print(f"## Many clients\n\n{machine()}.\n")
    if "files" in args.only:
        files_table(n, d, repetitions, args.folder)
    if "memory" in args.only:
        memory_table([(n, 20_000)] if args.quick else [(256, 1_000_000), (n, 300_000), (n, 1_000_000)], repetitions)
    if "clients" in args.only:
        clients_table([100_000], (10, 100) if args.quick else (10, 100, 1000), repetitions, torch.get_num_threads())
    if "known" in args.only:
        known_table((10_000, 100_000) if args.quick else (10_000, 100_000, 1_000_000), 30)
    if "whatif" in args.only:
        whatif_table(n, 50 if args.quick else 500, repetitions)
    if "simulator" in args.only:
        simulator_table(100 if args.quick else 1000, "auto")


if __name__ == "__main__":
    main()
