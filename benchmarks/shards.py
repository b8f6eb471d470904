"""What a guarded round over column shards costs: beside one process, on the wire, and by a model of its capacity.

    python benchmarks/shards.py                  about six minutes, 2 GB of disk
    python benchmarks/shards.py --quick          about a minute
    python benchmarks/shards.py --paper          the model alone, for sizes that no single machine holds

Prints Markdown. Updates are .npy files that all processes read through the page cache; a round opens them, decides,
and writes the update. One process has as many threads as there are workers, each of one core; both take turns, and a
ratio is that of two neighbouring measurements. The model's constants come from a small round and the largest one,
with one worker; the other rows check it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import ray
import torch
from common import machine, say, seconds, show, spread

import fedwarden as fw
from fedwarden.shards import Shards
from fedwarden.updates.sketch import ALL_PAIRS, SIZE

PRESETS = ("pid_made", "auto")
SIZES = ((20, 4_000_000), (100, 1_000_000), (100, 4_000_000))
QUICK = ((20, 400_000), (50, 400_000))
WORKERS = (1, 2)
SAMPLED = 1 << 21  # entries that auto's signal alone looks at
GIB, MIB = 1 << 30, 1 << 20


@dataclass(frozen=True)
class Model:
    """What a round of n clients and d parameters takes on all cores of the workers, and on the wire.

    seconds = 4 n d / (cores read) + [auto, n <= 256] n (n + 1) / 2 d / (cores products)
                                   + [auto, n > 256] 4 n d / (cores read), for sketches
    """

    read: float
    """Bytes of rows that a core surveys in a second."""
    products: float
    """Products of two entries that a core adds up in a second."""

    def seconds(self, preset: str, n: int, d: int, cores: int) -> float:
        """Seconds of the workers, beside those that do not grow with d.

        >>> Model(read=4e9, products=1e9).seconds("pid_made", n=100, d=10**7, cores=2)
        0.5
        """
        pairs = n * (n + 1) / 2 * d if preset == "auto" and n <= ALL_PAIRS else 0.0
        reads = 2 if preset == "auto" and n > ALL_PAIRS else 1
        return reads * 4 * n * d / (cores * self.read) + pairs / (cores * self.products)

    @staticmethod
    def received(preset: str, n: int, d: int, workers: int) -> int:
        """Bytes that the workers return: one survey, the word that they wrote, for auto pairs or sketches and a sample.

        >>> Model.received("pid_made", n=10, d=1000, workers=2)
        496
        """
        sampled = 4 * n * min(d, SAMPLED // n)
        compared = 8 * (n + 1) ** 2 if n <= ALL_PAIRS else 4 * n * SIZE
        return workers * (24 * n + 8) + (workers * compared + sampled if preset == "auto" else 0)


def write_updates(folder: Path, n: int, d: int) -> list[Path]:
    """One file per client: what all agree on, and noise."""
    rng = np.random.default_rng(0)
    agreed, paths = rng.standard_normal(d, dtype=np.float32), [folder / f"{i}.npy" for i in range(n)]
    for path in paths:
        np.save(path, agreed + rng.standard_normal(d, dtype=np.float32))
    return paths


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


def other_table(n: int, d: int, workers: int) -> None:
    """What else a round may cost: updates that are handed over, and a worker that is killed before it is judged."""
    with tempfile.TemporaryDirectory() as name, Shards(d, workers) as shards:
        folder = Path(name)
        paths = write_updates(folder, n, d)
        step = in_shards("pid_made", paths, folder, shards)
        step()
        usual = seconds(step)
        arrays = [np.load(path) for path in paths]
        shards.begin()
        handed = seconds(lambda: [shards.take(str(i), row, 10.0) for i, row in enumerate(arrays)])
        shards.begin()
        for path in paths:
            shards.take(path.stem, path, 10.0)
        cohort = shards.cohort(9)
        ray.kill(shards.workers[-1])
        after = seconds(lambda: shards.write(fw.Warden.preset("pid_made").step(*cohort).update, folder / "many.npy"))
    show(
        f"What else a round may cost: n = {n}, d = {d:,}, {workers} workers, pid_made",
        ("what", "seconds"),
        [
            ("a round from files", f"{usual:.2f}"),
            (f"updates handed over, {4 * n * d / handed / 1e6:,.0f} MB/s", f"{handed:.2f}"),
            ("a round in which a worker is killed", f"{after:.2f}"),
        ],
        "Most of the last is the start of a new process, which imports torch and compiles kernels.",
    )


def paper_table(model: Model) -> None:
    cases = [
        ("1,000 clients, 1 B parameters", 1_000, 10**9, 64, 16),
        ("1,000 clients, adapters of 70 B (0.2 B)", 1_000, 2 * 10**8, 16, 16),
        ("10,000 clients, adapters of 70 B (0.2 B)", 10_000, 2 * 10**8, 128, 16),
        ("1,000 clients, all of 70 B", 1_000, 7 * 10**10, 1024, 16),
    ]
    rows = []
    for what, n, d, workers, cores in cases:
        for preset in PRESETS:
            time, wire = model.seconds(preset, n, d, workers * cores), Model.received(preset, n, d, workers)
            held, part = 4 * n * d, 4 * n * d / workers
            rows.append(
                (what, preset, f"{workers} x {cores}", f"{held / 1e12:.1f}", f"{part / 1e9:.0f}", f"{time:,.0f}",
                 f"{part / 3e9:.0f}", f"{wire / 1e9:.3g}", f"{wire / 1.25e9:.2g}")
            )  # fmt: skip
    header = (
        "what", "guard", "workers x cores", "rows, TB", "GB a worker", "s by the model", "s to read it at 3 GB/s",
        "to the server, GB", "s of it at 10 Gbit/s",
    )  # fmt: skip
    show("On paper", header, rows, f"{model}; without the judging on the server, which docs/scale.md has by n.")


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
    parser.add_argument("--paper", action="store_true")
    arguments = parser.parse_args()
    print(f"{machine()}\n")
    if arguments.paper:
        paper_table(PUBLISHED)
        return
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=max(WORKERS) + 1, include_dashboard=False, log_to_driver=False, object_store_memory=100 * MIB
    )  # fmt: skip
    sizes, turns = (QUICK, 3) if arguments.quick else (SIZES, 5)
    small = {
        n: measure(n, SAMPLED // n, [1], turns) for n, _ in sizes
    }  # as small as can be with a whole sample of auto
    fixed = {(preset, n): min(small[n][preset, 1][1]) for n in small for preset in PRESETS}
    found = {(n, d): measure(n, d, WORKERS, turns) for n, d in sizes}
    n, d = sizes[-1]
    survey, both = (min(found[n, d][preset, 1][1]) - fixed[preset, n] for preset in PRESETS)
    model = Model(round(4 * n * d / survey, -6), round(n * (n + 1) / 2 * d / (both - survey), -6))
    rows, checks = [], []
    for (n, d), cases in found.items():
        for (preset, many), (one, sharded, (sent, received)) in cases.items():
            ratios = [b / a for a, b in zip(one, sharded, strict=True)]
            rows.append(
                (n, f"{d:,}", preset, many, f"{median(one):.2f}", spread(sharded), spread(ratios), f"{sent / 1e3:,.1f}",
                 f"{received / 1e3:,.1f}", f"{4 * n * d / 1e6:,.0f}")
            )  # fmt: skip
            guess = fixed[preset, n] + model.seconds(preset, n, d, many)
            fitted = " (fitted)" if (many == 1 and (n, d) == sizes[-1]) else ""
            checks.append(
                (n, f"{d:,}", preset, many, f"{guess:.2f}", f"{min(sharded):.2f}{fitted}", f"{min(one):.2f}",
                 f"{min(sharded) / guess:.2f}", f"{Model.received(preset, n, d, many):,}", f"{received:,.0f}")
            )  # fmt: skip
    show(
        "Shards beside one process",
        ("n", "d", "guard", "workers", "one process, s", "shards, s", "shards / one process", "sent, kB",
         "received, kB", "rows, MB"),
        rows,
    )  # fmt: skip
    show(
        "The model beside what was measured",
        ("n", "d", "guard", "workers", "model, s", "shards, s", "one process, s", "shards / model", "bytes by model",
         "bytes received"),
        checks, f"{model}. The fastest of {turns} turns.",
    )  # fmt: skip
    other_table(*sizes[0], workers=2)
    judging_table((100, 300) if arguments.quick else (100, 1000, 4000))
    paper_table(model)


PUBLISHED = Model(read=4.1e9, products=11e9)  # of docs/scale.md

if __name__ == "__main__":
    main()
