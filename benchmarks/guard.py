"""What one guarded round costs beside one plain read of the same updates: time and memory.

    python benchmarks/guard.py                  about ten minutes, 3 GB of memory
    python benchmarks/guard.py --quick          about a minute, small models
    python benchmarks/guard.py --only time --threads 1

Prints Markdown. The floor is the fastest of ``torch.sum(dim=0)``, ``ones @ x`` and a plain compiled sum over the same
memory with the same threads, chosen before the measurements; floor and guard take turns, and a ratio is that of two
neighbouring measurements. Where all pairs of clients are needed, ``x @ x.T`` is measured too.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from common import at_most, fastest_read, machine, say, seconds, show

import fedwarden as fw
from fedwarden.core.types import Outcome
from fedwarden.sim.models import build_model
from fedwarden.sim.training.trainer import plain_products

GIB = 1 << 30
BARS = {"pid_made": {20: 2.5, 50: 2.0}, "auto": {20: 4.5, 50: 4.5}}  # the largest median ratio, by n
PAIRS_BAR = 0.65  # or of x @ x.T, for what needs all pairs
MEMORY_BAR = 10.0  # per cent of n * d * 4 bytes
SECTIONS = ("time", "memory")

Layers = list[int]


@dataclass(frozen=True)
class Case:
    """One kind of round: which guard, whether somebody is newly excluded, and how the updates are held."""

    preset: str
    excluded: bool
    held: str  # "stacked": one (n, d) tensor; "layers": a list per client; "models": layers of whole models, base given
    counts: str = "unequal"  # the clients' example counts; equal ones spare the guard a second mean

    def __str__(self) -> str:
        what = "one newly excluded" if self.excluded else "steady"
        return f"{self.preset} | {what} | {self.held} | {self.counts}"


CASES = (
    Case("pid_made", False, "stacked"),
    Case("pid_made", False, "stacked", "equal"),
    Case("pid_made", False, "layers"),
    Case("pid_made", False, "models"),
    Case("auto", False, "stacked"),
    Case("auto", False, "layers"),
    Case("pid_made", True, "stacked"),
    Case("pid_made", True, "layers"),
)
HEADER = ("n", "d", "guard", "round", "rows", "counts")


def layers_of(name: str, shape: Sequence[int], **options: Any) -> Layers:
    """The sizes of a model's parameters, layer by layer."""
    return [p.numel() for p in build_model(name, options, shape, 10, seed=0).parameters()]


def small_model() -> Layers:
    return layers_of("resnet18", (3, 32, 32), width=12)


def cnn() -> Layers:
    """1.2 million parameters in 8 layers."""
    return layers_of("audit_cnn", (1, 28, 28))


def resnet() -> Layers:
    """11.2 million parameters in 62 layers."""
    return layers_of("resnet18", (3, 32, 32))


def make_stack(n: int, layers: Layers) -> torch.Tensor:
    """Updates of two lengths, so that nobody stands out by chance: n rows of d numbers."""
    stack = torch.empty(n, sum(layers)).normal_(generator=torch.Generator().manual_seed(0))
    for i, row in enumerate(stack):
        row.mul_(0.01 * (1.0 + 0.1 * (i % 2)))
    return stack


def hold(stack: torch.Tensor, layers: Layers, held: str) -> Any:
    """The same memory as one tensor or as a list of layers per client."""
    return stack if held == "stacked" else [list(row.split(layers)) for row in stack]


def counts_of(n: int, counts: str) -> np.ndarray[Any, Any]:
    return np.full(n, 500.0) if counts == "equal" else 400.0 + 10.0 * np.arange(n) % 200


class Guard:
    """A warden after one clean round, brought back to that state before every measurement."""

    def __init__(self, case: Case, stack: torch.Tensor, layers: Layers) -> None:
        self.case, self.n = case, len(stack)
        self.rows, self.counts = hold(stack, layers, case.held), counts_of(len(stack), case.counts)
        self.base = torch.zeros(stack.shape[1]) if case.held == "models" else None
        self.warden = fw.Warden.preset(case.preset)
        self.step(1)
        self.state = self.warden.memory, self.warden.carried  # which no round writes to

    def step(self, round: int) -> Outcome:
        """Score, decide and aggregate, from what the clients sent."""
        updates = fw.Updates.of(self.rows, self.base)
        return self.warden.step(fw.Cohort(round, tuple(map(str, range(self.n))), updates, self.counts))

    def second_round(self) -> Outcome:
        return self.step(2)

    def reset(self) -> None:
        self.warden.memory, self.warden.carried = self.state

    def check(self) -> None:
        """The round does what its name says; otherwise its time would mean nothing."""
        self.reset()
        gone = np.flatnonzero(self.second_round().weights == 0).tolist()
        if gone != ([0] if self.case.excluded else []):
            raise SystemExit(f"{self.case}: expected {'client 0' if self.case.excluded else 'nobody'} out, got {gone}")


@contextmanager
def outlier(stack: torch.Tensor, present: bool) -> Iterator[None]:
    """The first client far out, for rounds in which somebody is newly excluded."""
    if present:
        stack[0] *= 20
    try:
        yield
    finally:
        if present:
            stack[0] /= 20


def measure(read: Callable[[], Any], guards: Sequence[Guard], repetitions: int) -> list[list[tuple[float, float]]]:
    """(floor, guard) seconds of every repetition and guard; the guards take turns, each after a floor of its own."""
    for guard in guards:
        guard.check()
    times: list[list[tuple[float, float]]] = [[] for _ in guards]
    for _ in range(repetitions):
        for pairs, guard in zip(times, guards, strict=True):
            guard.reset()
            floor = seconds(read)
            pairs.append((floor, seconds(guard.second_round)))
    return times


def fastest_pairs(stack: torch.Tensor, repetitions: int) -> float:
    """Seconds of ``x @ x.T``, with oneDNN or without: on ARM that takes ten times as long of some sizes."""

    def product() -> torch.Tensor:
        return stack @ stack.T

    with plain_products():
        without = median(seconds(product) for _ in range(repetitions))
    once = seconds(product)
    return without if once > 2 * without else min(without, median(seconds(product) for _ in range(repetitions)))


def time_table(sizes: Sequence[tuple[int, Layers]], repetitions: int, threads: int) -> None:
    torch.set_num_threads(threads)
    rows, floors = [], []
    for n, layers in sizes:
        say(f"time: n = {n}, d = {sum(layers):,}, {threads} threads")
        stack = make_stack(n, layers)
        guards = [Guard(case, stack, layers) for case in CASES]  # before there is an outlier
        name, read = fastest_read(stack)
        all_pairs = fastest_pairs(stack, repetitions)
        floors.append(f"n = {n}: `{name}`, and `x @ x.T` takes {1000 * all_pairs:.1f} ms")
        for excluded in (False, True):
            some = [g for g in guards if g.case.excluded == excluded]
            with outlier(stack, excluded):
                for guard, pairs in zip(some, measure(read, some, repetitions), strict=True):
                    ratios = [b / a for a, b in pairs]
                    floor, ours = (1000 * median(p[k] for p in pairs) for k in (0, 1))
                    limit = BARS[guard.case.preset].get(n)
                    if limit and guard.case.preset == "auto":
                        limit = max(limit, round(PAIRS_BAR * 1000 * all_pairs / floor, 2))
                    rows.append(
                        [n, f"{sum(layers):,}", *str(guard.case).split(" | "), f"{floor:.1f}", f"{ours:.1f}",
                         f"{median(ratios):.2f}", f"{min(ratios):.2f}", at_most(median(ratios), limit)]
                    )  # fmt: skip
    show(
        f"Time of a guarded round, {threads} thread{'s' * (threads > 1)}",
        (*HEADER, "floor, ms", "guard, ms", "median ratio", "smallest", "bar"),
        rows,
        f"Floor: the fastest read of the same memory ({'; '.join(floors)}). {repetitions} "
        "repetitions, floor and guard in turn; times are medians. The guard's time covers wrapping the "
        "rows, scores, decision and aggregate. Rows: `stacked` one "
        "tensor; `layers` a list of layers per client; `models` the same as whole models, the global one subtracted.",
    )


def resident(field: str = "VmRSS") -> int:
    """Bytes of resident memory now, or the highest so far (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise SystemExit(f"/proc/self/status has no {field}; the memory figures need Linux")


def forget_peak() -> None:
    """Give freed memory back to the system and let VmHWM start again from what is in use now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else the step would live on what earlier ones have freed
    Path("/proc/self/clear_refs").write_text("5")


def warm_up(case: Case, n: int) -> None:
    """The same path on little data: imports, compiled kernels and threads are there once and for all."""
    few = [1 << 16] * 3
    stack = make_stack(n, few)
    guard = Guard(case, stack, few)
    with outlier(stack, case.excluded):
        guard.second_round()


def probe_memory(task: dict[str, Any]) -> dict[str, Any]:
    """In a fresh process: the peak of one step above what was resident before it."""
    case, n, layers = Case(**task["case"]), task["n"], task["layers"]
    torch.set_num_threads(task["threads"])
    warm_up(case, n)
    stack = make_stack(n, layers)
    guard = Guard(case, stack, layers)
    with outlier(stack, case.excluded):
        forget_peak()
        before = resident()
        outcome = guard.second_round()
        peak = resident("VmHWM") - before
    return {"peak": peak, "result": 4 * outcome.update.numel(), "out": int((outcome.weights == 0).sum())}


def memory_table(sizes: Sequence[tuple[int, Layers]], threads: int, repetitions: int) -> None:
    rows = []
    for n, layers in sizes:
        say(f"memory: n = {n}, d = {sum(layers):,}")
        whole = 4 * n * sum(layers)
        for case in CASES:
            task = {"case": asdict(case), "n": n, "layers": layers, "threads": threads}
            found = [in_fresh_process("memory", task) for _ in range(repetitions)]
            if any(f["out"] != int(case.excluded) for f in found):
                raise SystemExit(f"{case}: somebody was excluded in the wrong round")
            peak = max(f["peak"] for f in found)
            share, result = 100 * peak / whole, 100 * found[0]["result"] / whole
            rows.append(
                [n, f"{sum(layers):,}", *str(case).split(" | "), f"{peak / 1e6:.1f}", f"{share:.2f} %",
                 f"{result:.2f} %", at_most(share, MEMORY_BAR, " %")]
            )  # fmt: skip
    show(
        "Peak extra memory of a guarded round",
        (*HEADER, "extra, MB", "of n d 4 bytes", "the new update alone", "bar"),
        rows,
        "Each case in a fresh process that has played a small round: the kernel's peak resident size (VmHWM, reset "
        f"before the step) less what was resident before it; the largest of {repetitions}. The update that the step "
        f"returns is part of it. {threads} threads.",
    )


class Sampler:
    """The highest VmRSS that a thread sees, looking every few milliseconds."""

    def __init__(self, pause: float = 0.005) -> None:
        self.peak, self.pause, self.stop = 0, pause, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self.stop.is_set():
            self.peak = max(self.peak, resident())
            time.sleep(self.pause)

    def __enter__(self) -> Sampler:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        self.thread.join()


def evict(paths: Sequence[Path]) -> None:
    """Ask the kernel to drop the files' pages, so that the next read comes from the disk."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_once(paths: Sequence[Path], buffer: bytearray) -> None:
    """Every byte of the files once, through one buffer."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def write_updates(folder: Path, n: int, d: int) -> list[Path]:
    """One .npy file per client, on the disk and not only in memory when this returns."""
    generator, paths = torch.Generator().manual_seed(0), []
    for i in range(n):
        paths.append(folder / f"client-{i:03d}.npy")
        row = torch.empty(d).normal_(0.0, 0.01 * (1.0 + 0.1 * (i % 2)), generator=generator)
        with paths[-1].open("wb") as file:
            np.save(file, row.numpy(), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
    return paths


def probe_disk(task: dict[str, Any]) -> dict[str, Any]:
    """In a fresh process: times of reading the files once and of a guarded round over them, in turn."""
    paths, buffer = [Path(p) for p in task["paths"]], bytearray(16 << 20)
    torch.set_num_threads(task["threads"])
    counts, ids = counts_of(len(paths), "unequal"), tuple(map(str, range(len(paths))))
    warm_up(Case(task["preset"], False, "layers"), len(paths))
    warden = fw.Warden.preset(task["preset"])

    def guarded(round: int = 2) -> None:
        warden.step(fw.Cohort(round, ids, fw.Updates.open(paths), counts))

    guarded(1)
    state: dict[str, Any] = warden.state_dict()
    floors: list[float] = []
    ours: list[float] = []

    with Sampler() as sampler:
        for _ in range(task["repetitions"]):
            for work, times in ((lambda: read_once(paths, buffer), floors), (guarded, ours)):
                warden.load_state_dict(state)
                evict(paths) if task["cold"] else read_once(paths, buffer)
                times.append(seconds(work))
    return {"floors": floors, "ours": ours, "peak": sampler.peak, "out": len(warden.excluded)}


def clients_table(layers: Layers, numbers: Sequence[int], repetitions: int, threads: int) -> None:
    """Time per client over the number of clients, the sizes in turn."""
    torch.set_num_threads(threads)
    say(f"clients: {', '.join(map(str, numbers))}, {threads} threads")
    stacks = {n: make_stack(n, layers) for n in numbers}
    read = {n: fastest_read(stack)[1] for n, stack in stacks.items()}
    rows = []
    for preset in ("pid_made", "auto"):
        guards = {n: Guard(Case(preset, False, "stacked"), stacks[n], layers) for n in numbers}
        times: dict[int, list[tuple[float, float]]] = {n: [] for n in numbers}
        for _ in range(repetitions):
            for n in numbers:
                times[n] += measure(read[n], [guards[n]], 1)[0]
        each = {n: 1000 * median(b for _, b in times[n]) / n for n in numbers}
        for n in numbers:
            ratio = median(b / a for a, b in times[n])
            rows.append([preset, n, f"{each[n]:.3f}", f"{each[n] / each[numbers[0]]:.2f}", f"{ratio:.2f}"])
    show(
        f"Time per client, d = {sum(layers):,}, {threads} thread{'s' * (threads > 1)}",
        ("guard", "n", "ms per client", f"relative to n = {numbers[0]}", "ratio to the floor"),
        rows,
        f"A steady round, stacked rows, unequal counts; medians of {repetitions} repetitions. Linear in n: the fourth "
        "column stays near 1 (small cohorts may fit a cache).",
    )


PROBES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"memory": probe_memory, "disk": probe_disk}


def in_fresh_process(probe: str, task: dict[str, Any]) -> dict[str, Any]:
    """Run one probe in a process of its own; tasks and results are JSON."""
    command = [sys.executable, __file__, "--probe", probe]
    done = subprocess.run(command, input=json.dumps(task), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the {probe} probe failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    default = torch.get_num_threads()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="smaller models and fewer repetitions")
    parser.add_argument("--threads", type=int, nargs="+", metavar="N", help=f"default: 1 and {default}")
    parser.add_argument("--repetitions", type=int, metavar="N", help="default: 9, with --quick 5")
    parser.add_argument("--only", choices=SECTIONS, nargs="+", default=list(SECTIONS), help="some of the tables")
    parser.add_argument("--probe", choices=PROBES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe:
        print(json.dumps(PROBES[args.probe](json.loads(sys.stdin.read()))))
        return
    threads = sorted(set(args.threads or (1, default)))
    repetitions = args.repetitions or (5 if args.quick else 9)
    sizes = [(20, small_model()), (50, cnn())] if args.quick else [(20, cnn()), (50, resnet())]
    print(f"## Guard\n\n{machine()}.\n", flush=True)
    if "time" in args.only:
        for number in threads:
            time_table(sizes, repetitions, number)
    if "memory" in args.only:
        memory_table(sizes, threads[-1], 1 if args.quick else min(repetitions, 3))


if __name__ == "__main__":
    main()
