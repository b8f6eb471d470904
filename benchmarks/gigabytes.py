"""A guard over models of gigabytes from files: eight clients in float16 and four in float32, read through memory maps.

python benchmarks/gigabytes.py                          774 M parameters, 25 GB of files, some minutes, two cores
python benchmarks/gigabytes.py --parameters 8e6         the same at a hundredth of the size
python benchmarks/gigabytes.py --folder /big            files elsewhere, which are kept and used again
python benchmarks/gigabytes.py --forecast 70e9          the table for models of that size, from what was measured

The process that folds is measured: RssAnon is what it has allocated and the system cannot drop, and VmHWM adds the
pages of files that it has read, which the system may drop at any time. The bar of 9.3 GB, three models in float32, is
held against VmHWM, the larger of the two, with model, accumulators and update in it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from secrets import token_hex
from time import perf_counter, process_time
from typing import Any

import numpy as np
import ray
import torch
from common import at_most, machine, show

import fedwarden as fw
from fedwarden.shards import Shards
from guard import forget_peak, resident

LARGE = 774_030_080  # entries of GPT-2-large: 36 blocks of width 1,280, a vocabulary of 50,257, 1,024 positions
HALF, SINGLE = 8, 4
BARS = {"pid_made": 3.0, "auto": 6.0}  # reads of the files
CASES = ("read", "pid_made", "auto", "mean", "products", "pid_made/2", "auto/2")  # of so many workers
CHUNK = 1 << 22


def numbers(d: int) -> Iterator[Iterator[np.ndarray]]:
    """The updates by parts, each by clients: a common step with twice as much noise; the last has the other sign."""
    step, own = np.random.default_rng(7), [np.random.default_rng([8, i]) for i in range(HALF + SINGLE)]
    signs = [1.0] * (HALF + SINGLE - 1) + [-1.0]
    for start in range(0, d, CHUNK):
        size = min(CHUNK, d - start)
        shared = step.standard_normal(size, np.float32)
        yield (
            np.float32(1e-3) * (np.float32(sign) * shared + 2 * rng.standard_normal(size, np.float32))
            for sign, rng in zip(signs, own, strict=True)
        )


MEASURED = {"pid_made": (1.09, 32.1 / 24.8), "auto": (1.92, 38.3 / 24.8)}  # times from disk; seconds of a core per GB
BESIDE = 0.7  # GB beside model and update


def forecast(d: float, preset: str, memory: float, disk: float, network: float, cores: int) -> list[str]:
    """A round of models of d parameters over machines of so many GB of memory and GB/s of disk and network.

        bytes = 2 d HALF + 4 d SINGLE;   machines = ceil(8 d / (memory - BESIDE))
        seconds = max(times * bytes / disk, core seconds * bytes / cores) / machines

    A machine holds model and update, both as float32, of its columns, and has their part of each file on its own disk.
    The replies come through the server's network.
    """
    size, (times, busy) = d * (2 * HALF + 4 * SINGLE) / 1e9, MEASURED[preset]
    machines = int(np.ceil(8 * d / 1e9 / (memory - BESIDE)))
    reading, folding = (part * size / machines for part in (times / disk, busy / cores))
    numbers = (size, times * size, 8 * d / 1e9 + BESIDE, machines, size / network, reading, folding)
    return [f"`{preset}`", *(f"{number:,.0f}" for number in numbers), f"{max(reading, folding):,.0f}"]


def write(folder: Path, d: int) -> list[Path]:
    """The files of all clients; replies go to disk part by part, as they come."""
    paths = [folder / f"{i}.npy" for i in range(HALF + SINGLE)]
    if all(path.exists() for path in paths):
        return paths
    types = [np.dtype(np.float16 if i < HALF else np.float32) for i in range(len(paths))]
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for file, dtype in zip(files, types, strict=True):
            header = {"descr": dtype.str, "fortran_order": False, "shape": (d,)}
            np.lib.format.write_array_header_1_0(file, header)
        for parts in numbers(d):
            for file, dtype, part in zip(files, types, parts, strict=True):
                file.write(part.astype(dtype).data)
    return paths


def read(paths: list[Path]) -> int:
    """Every byte of the files once, in order; the floor that reads are counted in."""
    total, buffer = 0, bytearray(8 << 20)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                total += size
    return total


def forget_files(paths: list[Path]) -> None:
    """Take the files out of the page cache, so that every case reads them from disk."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def mean(paths: list[Path]) -> torch.Tensor:
    """A plain mean from the same files, part by part."""
    rows = [np.load(path, mmap_mode="r") for path in paths]
    out = np.empty(len(rows[0]), np.float32)
    for start in range(0, len(out), CHUNK):
        part = slice(start, start + CHUNK)
        total = np.zeros(len(out[part]), np.float32)
        for row in rows:
            total += row[part]
        out[part] = total / len(rows)
    return torch.from_numpy(out)


def products(paths: list[Path]) -> torch.Tensor:
    """x @ x.T of the same rows, part by part: what the arithmetic of all pairs costs alone."""
    rows = [torch.from_numpy(np.load(path, mmap_mode="r+")) for path in paths]
    total = torch.zeros(len(rows), len(rows))
    for start in range(0, len(rows[0]), CHUNK):
        x = torch.stack([row[start : start + CHUNK].float() for row in rows])
        total += x @ x.T
    return total


def from_disk(place: Path = Path("/proc/self")) -> int:
    """Bytes that a process has had read from disk so far."""
    return int(re.search(r"^read_bytes: (\d+)", (place / "io").read_text(), re.MULTILINE)[1])


class Peak:
    """The most that was resident while it watched: anonymous pages, by looking often, and all, by the system's mark."""

    def __enter__(self) -> Peak:
        forget_peak()
        self.anonymous, self.ended = 0, False
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.ended = True
        self.thread.join()
        self.most = resident("VmHWM")

    def _watch(self) -> None:
        while not self.ended:
            self.anonymous = max(self.anonymous, resident("RssAnon"))
            time.sleep(0.02)


def second_round(preset: str, cohort: Callable[[int], fw.Cohort]) -> Callable[[], Any]:
    """A guard that has seen one round of small rows, and its next round of these."""
    warden = fw.Warden.preset(preset, secret=1)
    few = np.stack(list(next(numbers(1 << 16))))
    names = [str(i) for i in range(HALF + SINGLE)]
    warden.step(fw.Cohort(1, names, fw.Updates.of(few), np.full(len(names), 10.0)))
    return lambda: warden.step(cohort(2))


class Workers:
    """The processes of Ray's workers: what each has used so far, and the most that one of them has held."""

    def __init__(self) -> None:
        places = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if b"ray::Worker" in path.read_bytes()]
        stats = [(place / "stat").read_text().rpartition(")")[2].split() for place in places]
        self.seconds = sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")
        self.disk = sum(from_disk(place) for place in places)
        self.anonymous, self.most = (max(held(kind, place) for place in places) for kind in ("RssAnon", "VmHWM"))


def held(kind: str, place: Path) -> int:
    return 1024 * int(re.search(rf"^{kind}:\s+(\d+)", (place / "status").read_text(), re.MULTILINE)[1])


def sharded(preset: str, paths: list[Path], many: int) -> None:
    """A round over Ray workers, of which each reads its columns of the same files."""
    ray.init("local", num_cpus=many, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    with Shards(len(np.load(paths[0], mmap_mode="r")), many) as shards:

        def rows(round: int) -> fw.Cohort:
            shards.begin()
            for path in paths:
                shards.take(path.stem, path, 10.0)
            return shards.cohort(round)[0]

        work = second_round(preset, rows)
        rows(0).updates.sample(np.arange(4))  # the workers load what they need
        before, start = Workers(), perf_counter()
        made = work()
        shards.write(made.update, paths[0].with_name("update.npy"))
        seconds, after = perf_counter() - start, Workers()
    used = (seconds, after.seconds - before.seconds, after.disk - before.disk, after.anonymous / 1e9, after.most / 1e9)
    print(*used, np.round(made.weights, 3).tolist(), sep="\t")


def child(case: str, paths: list[Path]) -> None:
    """One case in a process of its own: seconds, and gigabytes at the peak."""
    torch.set_num_threads(2)
    names = [str(path.stem) for path in paths]
    work: Callable[[], Any]
    preset, _, many = case.partition("/")
    if many:
        return sharded(preset, paths, int(many))
    if case in BARS:
        d = len(np.load(paths[0], mmap_mode="r"))
        model = torch.full((d,), 0.01)  # the global model is held beside the rows

        def rows(round: int) -> fw.Cohort:
            return fw.Cohort(round, names, fw.Updates.open(paths), np.full(len(paths), 10.0), model)

        work = second_round(case, rows)
    else:
        work = {"read": lambda: read(paths), "mean": lambda: mean(paths), "products": lambda: products(paths)}[case]
    with Peak() as peak:
        start, before, disk = perf_counter(), process_time(), from_disk()
        made = work()
        seconds, own, disk = perf_counter() - start, process_time() - before, from_disk() - disk
    weights = np.round(made.weights, 3).tolist() if case in BARS else []
    print(seconds, own, disk, peak.anonymous / 1e9, peak.most / 1e9, weights, sep="\t")
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=LARGE)
    parser.add_argument("--folder")
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--forecast", type=float)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        case, folder = options.child
        paths = [Path(folder) / f"{i}.npy" for i in range(HALF + SINGLE)]
        return child(case, paths)
    if options.forecast:
        header = (
            "guard", "files, GB", "read from disk, GB", "memory in all, GB", "machines of 64 GB", "replies come, s",
            "disks read, s", "cores fold, s", "a round takes, s",
        )  # fmt: skip
        rows = [forecast(options.forecast, preset, 64, 2, 1.25, 16) for preset in BARS]
        told = "Each machine has 16 cores and a disk of 2 GB/s; the server's network brings 1.25 GB/s."
        return show(f"Models of {options.forecast:,.0f} parameters", header, rows, told)
    d = int(options.parameters)
    with tempfile.TemporaryDirectory() if options.folder is None else nullcontext(options.folder) as folder:
        paths = write(Path(folder), d)
        size = sum(path.stat().st_size for path in paths)
        print(
            f"{machine()}\n{d:,} parameters, {HALF} clients in float16 and {SINGLE} in float32, {size / 1e9:.1f} GB\n"
        )
        rows, floors = [], [0.0, 0.0]
        ray_too = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}
        for case in options.cases:
            forget_files(paths)
            command = [sys.executable, __file__, "--child", case, str(folder)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | ray_too)
            *found, weights = done.stdout.splitlines()[-1].split("\t")
            wall, own, disk, anonymous, most = map(float, found)
            floors = floors if floors[0] else [wall, own]
            reads = wall / floors[0], own / floors[1]
            bars = at_most(reads[0], BARS.get(case.partition("/")[0])), at_most(most, 12 * d / 1e9, " GB")
            numbers = (wall, reads[0], own, reads[1], disk / size, anonymous, most)
            rows.append([case, *(f"{number:.2f}" for number in numbers), *bars])
            print(*rows[-1], weights, file=sys.stderr)
        header = (
            "case", "seconds", "reads", "seconds of CPU", "reads of CPU", "times from disk", "RssAnon, GB", "VmHWM, GB",
            "bar of time", "bar of memory",
        )  # fmt: skip
        show("A round over models from files", header, rows, "Each case is a process of its own.")
    return None


if __name__ == "__main__":
    main()
