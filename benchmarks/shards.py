"""What a guarded round over column shards costs: beside one process, and on the wire.

    python benchmarks/shards.py                  about six minutes, 2 GB of disk
    python benchmarks/shards.py --quick          about a minute

Prints Markdown. Updates are .npy files that all processes read through the page cache; a round opens them, decides,
and writes the update. One process has as many threads as there are workers, each of one core; both take turns, and a
ratio is that of two neighbouring measurements.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from secrets import token_hex
from statistics import median
from typing import Any

import numpy as np
import ray
import torch
from common import machine, say, seconds, show, spread

import fedwarden as fw
from fedwarden.shards import Shards
from guard import write_updates

PRESETS = ("pid_made", "auto")
SIZES = ((20, 4_000_000), (100, 1_000_000), (100, 4_000_000))
QUICK = ((20, 400_000), (50, 400_000))
WORKERS = (1, 2)
MIB = 1 << 20


def one_process(preset: str, paths: Sequence[Path], folder: Path, threads: int) -> Callable[[], Any]:
    warden, rounds = fw.Warden.preset(preset), count(1)
    ids, counts = [path.stem for path in paths], 10.0 + np.arange(len(paths))

    def step() -> None:
        torch.set_num_threads(threads)
        outcome = warden.step(fw.Cohort(next(rounds), ids, fw.Updates.open(paths), counts))
        np.save(folder / "one.npy", outcome.update.numpy())

    return step


def in_shards(preset: str, paths: Sequence[Path], folder: Path, shards: Shards) -> Callable[[], Any]:
    warden, rounds = fw.Warden.preset(preset), count(1)

    def step() -> None:
        shards.begin()
        for i, path in enumerate(paths):
            shards.take(path.stem, path, 10.0 + i)
        outcome = warden.step(*shards.cohort(next(rounds)))
        shards.write(outcome.update, folder / "many.npy")

    return step


def measure(n: int, d: int, workers: Sequence[int], turns: int) -> dict[tuple[str, int], tuple[list[float], ...]]:
    """Seconds of one process and of shards, and the bytes sent and received, by preset and number of workers."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write_updates(folder, n, d)
        for many in workers:
            with Shards(d, many) as shards:
                for preset in PRESETS:
                    one, sharded = one_process(preset, paths, folder, many), in_shards(preset, paths, folder, shards)
                    one(), sharded()  # files into the page cache, kernels compiled
                    gap = np.abs(np.load(folder / "one.npy") - np.load(folder / "many.npy")).max()
                    assert gap <= 1e-5, f"the updates differ by {gap}"
                    shards.wire.clear()
                    pairs = [(seconds(one), seconds(sharded)) for _ in range(turns)]
                    wire = [shards.wire[way] / turns for way in ("sent", "received")]
                    found[preset, many] = [a for a, _ in pairs], [b for _, b in pairs], wire
                    say(f"n={n} d={d} {preset}, {many} workers: {spread([b for _, b in pairs])} s")
    return found


def judging_table(sizes: Sequence[int]) -> None:
    """The server's own part, which has no d in it."""
    rows = []
    for n in sizes:
        updates = np.random.default_rng(0).normal(1.0, size=(n, 64)).astype(np.float32)
        times = {}
        for preset in PRESETS:
            warden, ids = fw.Warden.preset(preset), [str(i) for i in range(n)]
            cohorts = [fw.Cohort(t, ids, fw.Updates.of(updates), np.full(n, 10.0)) for t in (1, 2)]
            warden.step(cohorts[0])
            times[preset] = seconds(lambda warden=warden, last=cohorts[1]: warden.step(last))
        rows.append((n, *(f"{times[p]:.2f}" for p in PRESETS), f"{8 * (n + 1) ** 2 / MIB:.1f}"))
        say(f"judging n={n}: {times}")
    show("The server's own part: 64 parameters", ("n", *(f"{p}, s" for p in PRESETS), "n x n, MiB"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    print(f"{machine()}\n")
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}
    ray.init(
        num_cpus=max(WORKERS) + 1, include_dashboard=False, log_to_driver=False, object_store_memory=100 * MIB
    )  # fmt: skip
    sizes, turns = (QUICK, 3) if arguments.quick else (SIZES, 5)
    rows = []
    for n, d in sizes:
        for (preset, many), (one, sharded, (sent, received)) in measure(n, d, WORKERS, turns).items():
            ratios = [b / a for a, b in zip(one, sharded, strict=True)]
            rows.append(
                (n, f"{d:,}", preset, many, f"{median(one):.2f}", spread(sharded), spread(ratios), f"{sent / 1e3:,.1f}",
                 f"{received / 1e3:,.1f}", f"{4 * n * d / 1e6:,.0f}")
            )  # fmt: skip
    show(
        "Shards beside one process",
        ("n", "d", "guard", "workers", "one process, s", "shards, s", "shards / one process", "sent, kB",
         "received, kB", "rows, MB"),
        rows,
    )  # fmt: skip
    judging_table((100, 300) if arguments.quick else (100, 1000, 4000))


if __name__ == "__main__":
    main()
