"""Updates in column shards: each Ray worker holds its columns of all clients, and only sums over columns come back.

A round is begun, updates are taken as they arrive, by name of a file that all workers can read or as an array, and the
cohort goes to a warden like any other. What the warden makes of it stays with the workers until it is written.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.exceptions import ObjectLostError, RayActorError
from torch import Tensor

from ..core.errors import ConfigError, FedwardenError
from ..core.notes import Note
from ..core.stats import Norms, Weights, number
from ..core.types import Cohort, Rejection
from ..updates.segments import BackEnd, Rows, Segment
from ..updates.sketch import Hashing
from ..updates.updates import Updates
from .worker import Fold, Index, Worker, read_row

LOST = (RayActorError, ObjectLostError)
TRIES = 3  # how often a call is made before the shard is given up
TORCH = {"float32": torch.float32, "float64": torch.float64}
ASKED = {Tensor.shape.__get__, Tensor.dtype.__get__, Tensor.device.__get__, Tensor.numel, Tensor.__len__}  # type: ignore[attr-defined]


class NeedsRows(FedwardenError):
    """A signal or rule asks for what the workers do not give away: rows, or the numbers of an update."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} needs numbers that only the workers of the shards hold; "
            "choose signals and rules that need surveys, inner products, samples or ranks"
        )


class LostShard(FedwardenError):
    """Columns are gone with the worker that held them."""


def cuts(d: int, workers: int) -> list[tuple[int, int]]:
    """The columns of each worker, as equal in number as can be.

    >>> cuts(10, 3)
    [(0, 3), (3, 6), (6, 10)]
    """
    if not 1 <= workers <= d:
        raise ConfigError(f"shards need at least one worker and one column for each; got {workers} for d={d}")
    edges = [i * d // workers for i in range(workers + 1)]
    return list(pairwise(edges))


class OnWorkers(Tensor):
    """An update that lies on the workers: which fold of which rows it is. It has a size and a type, and no numbers."""

    rows: ShardedUpdates
    fold: Fold
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, rows: ShardedUpdates, fold: Fold, *arguments: Any) -> OnWorkers:
        made = torch.empty(rows.d, dtype=rows.dtype, device="meta").as_subclass(cls)
        made.rows, made.fold, made.arguments = rows, fold, arguments
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in ASKED:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        raise NeedsRows(f"torch's {getattr(func, '__name__', func)} of an update")

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnWorkers({self.fold} of {self.rows!r})"


class ShardedUpdates(Updates):
    """The rows of a round that lie on the workers of ``shards``; they look like any updates, without numbers."""

    def __init__(self, shards: Shards, index: Index) -> None:
        self.shards, self.index, self.key = shards, index, shards.key
        empty = torch.empty(len(index), shards.d, dtype=TORCH[shards.dtype], device="meta")
        super().__init__([Segment(0, shards.d, empty, True)], dtype=empty.dtype)

    def select(self, index: Sequence[int] | NDArray[np.int_]) -> Updates:
        return super().select(index) if len(index) else self._only([])

    def weighted_sum(self, weights: Weights) -> Tensor:
        w = np.asarray(weights, np.float64)
        if w.shape != (self.n,):
            raise ValueError(f"one weight per client; got {w.shape} for n={self.n}")
        return OnWorkers.of(self, "weighted_sum", w)

    def sample(self, columns: NDArray[np.int64]) -> Tensor:
        """The entries in some columns, asked for once: signals look at the same ones several times."""
        return self.once(("sample", columns.tobytes()), lambda: self.shards.sample(self, columns))

    def folded(self, fold: Callable[..., Tensor], *arguments: Any) -> Tensor:
        return OnWorkers.of(self, fold, *arguments)

    def block(self, segment: Segment, start: int, stop: int) -> Tensor:
        raise NeedsRows("a block of rows")

    def sent(self, i: int) -> list[Tensor]:
        raise NeedsRows("a single row")

    @property
    def array(self) -> Tensor | None:
        return None

    def _only(self, keep: list[int]) -> Updates:
        return ShardedUpdates(self.shards, tuple(self.index[i] for i in keep))

    def _back_end(self) -> BackEnd:
        return self.shards


class Shards:
    """Workers that hold the columns of all clients of a round, in equal parts; d numbers of one type each.

    Ray must run already, with a token or TLS: nothing here opens a port; see docs/scale.md. Rows that are handed over
    are in the memory of the workers, or in files under ``spool``, a folder that every worker can reach; a worker that
    is lost is replaced, and reads its columns again from files. ``wire`` counts the bytes that were handed over, sent
    and received.
    """

    def __init__(
        self,
        d: int,
        workers: int = 2,
        dtype: str = "float32",
        spool: str | os.PathLike[str] | None = None,
        cpus: int = 1,
    ) -> None:
        if dtype not in TORCH:
            raise ConfigError(f"shards hold {' or '.join(TORCH)}; got {dtype}")
        self.d, self.dtype, self.cpus, self.key = d, dtype, cpus, 0
        self.columns = cuts(d, workers)
        self.spool = None if spool is None else Path(spool)
        self.wire: Counter[str] = Counter()
        if os.environ.get("RAY_AUTH_MODE") != "token" and os.environ.get("RAY_USE_TLS") != "1":
            words = "shards need a Ray with a secret: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN before it starts"
            raise ConfigError(f"{words}; see docs/scale.md")
        if not ray.is_initialized():
            raise ConfigError(
                "shards need a running Ray: call ray.init() first, or ray.init(address=...) for a cluster"
            )
        there = int(ray.cluster_resources().get("CPU", 0))
        if workers * cpus > there:
            raise ConfigError(f"{workers} workers of {cpus} CPUs need {workers * cpus}; this Ray cluster has {there}")
        self.workers: list[Any] = [self._start(i) for i in range(workers)]
        self.folder: str | None = None
        self.begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the workers go, and what was kept of the round."""
        for worker in self.workers:
            ray.kill(worker)
        self.workers = []
        self._tidy()

    def begin(self, base: str | os.PathLike[str] | None = None) -> None:
        """A new round: what is left of the last one goes.

        ``base`` is the .npy file of the global model, where clients send whole models.
        """
        self._tidy()
        self.folder = None if self.spool is None else tempfile.mkdtemp(prefix="shards-", dir=self.spool)
        self.base = None if base is None else str(Path(base).absolute())
        self.key += 1
        self.taken = 0
        self.clients: dict[str, tuple[int, float]] = {}  # row and examples
        self.files: dict[int, str | None] = {}  # None for a row that was handed over
        self.held: set[int] = set()  # rows that every worker has had
        self.refused: list[Rejection] = []
        list(self._ask("begin", self.base, self.folder))

    def take(self, client_id: str, update: Any, num_examples: float) -> None:
        """An update as it arrives: the path of a .npy file of d numbers, or an array of them, which is handed over.

        One that does not fit is rejected, which :meth:`cohort` tells with the reason.
        """
        client, row, self.taken = str(client_id), self.taken, self.taken + 1
        if client in self.clients:
            self.refused.append(Rejection(client, Note.of("answered_twice")))
            return
        if isinstance(update, str | os.PathLike):
            self.files[row] = os.path.abspath(update)
        else:
            array = read_row(update, self.d, self.dtype)
            if isinstance(array, Note):
                self.refused.append(Rejection(client, array))
                return
            list(self._ask("take", row, each=[(array[a:b],) for a, b in self.columns], counted="handed over"))
            self.files[row] = None
            self.held.add(row)
        self.clients[client] = row, number(num_examples)

    def cohort(self, round: int) -> tuple[Cohort, tuple[Rejection, ...]]:
        """All that was taken, for a warden, and who is rejected since the update cannot be read."""
        faults: dict[int, Note] = {}
        for found in self._ask("open", {row: path for row, path in self.files.items() if path is not None}):
            faults = {**found, **faults}
        for client in [c for c, (row, _) in self.clients.items() if row in faults]:
            row, _ = self.clients.pop(client)
            del self.files[row]
            self.refused.append(Rejection(client, faults[row]))
        self.held.update(self.files)
        rows, counts = zip(*self.clients.values(), strict=True) if self.clients else ((), ())
        return Cohort(round, tuple(self.clients), ShardedUpdates(self, rows), counts), tuple(self.refused)

    def write(self, update: Tensor, path: str | os.PathLike[str], add_base: bool = False) -> None:
        """Let the workers write an update that a warden made of this round, or the model it leads to, as a .npy file.

        The file is there as a whole or not at all.
        """
        index, fold, arguments = self._recipe(update)
        target = Path(path).absolute()
        part = target.with_name(f"{target.name}.part")
        with part.open("wb") as file:
            header = {"descr": np.dtype(self.dtype).str, "fortran_order": False, "shape": (self.d,)}
            np.lib.format.write_array_header_1_0(file, header)
            offset = file.tell()
            file.truncate(offset + self.d * np.dtype(self.dtype).itemsize)
        list(self._ask("write", index, fold, arguments, str(part), offset, add_base))
        part.replace(target)

    def survey(
        self, updates: Rows, centre: Weights, shares: Weights, spread: bool
    ) -> tuple[Norms, Norms, Norms, Tensor]:
        """Squared norms, lengths and distances from all workers, and the weighted sum, which stays with them."""
        rows = self._mine(updates)
        parts = self._ask("survey", rows.index, centre, shares, spread) if rows.n else iter(())
        norms, lengths, distances = sum(parts, np.zeros((3, rows.n)))
        return norms, lengths, distances, rows.weighted_sum(shares)

    def gram(self, updates: Rows, origin: int) -> NDArray[np.float64]:
        """The inner products about one of the rows."""
        rows = self._mine(updates)
        return sum(self._ask("gram", rows.index, origin), np.zeros((rows.n + 1, rows.n + 1)))

    def sample(self, updates: Rows, columns: NDArray[np.int64]) -> Tensor:
        """The entries in some columns, in ascending order."""
        rows = self._mine(updates)
        edges = np.searchsorted(columns, [start for start, _ in self.columns] + [self.d])
        each = [(columns[i:j] - a,) for (a, _), i, j in zip(self.columns, edges, edges[1:], strict=False)]
        return torch.from_numpy(np.concatenate(list(self._ask("sample", rows.index, each=each)), axis=1))

    def sketch(self, updates: Rows, hashing: Hashing) -> Tensor:
        """The rows as sketches, which add up over the columns."""
        rows = self._mine(updates)
        each = [(hashing._replace(first=start),) for start, _ in self.columns]
        return torch.from_numpy(sum(self._ask("sketch", rows.index, each=each)))

    def weighted_sum(self, rows: Rows, weights: Weights, *_: object) -> Tensor:
        """Only told: the workers make it when it is written."""
        return self._mine(rows).weighted_sum(weights)

    def ranked_mean(self, updates: Rows, low: int, high: int) -> Tensor:
        return OnWorkers.of(self._mine(updates), "ranked_mean", low, high)

    def nearest_mean(self, updates: Rows, keep: int) -> Tensor:
        return OnWorkers.of(self._mine(updates), "nearest_mean", keep)

    def _mine(self, rows: Rows) -> ShardedUpdates:
        if not isinstance(rows, ShardedUpdates) or rows.shards is not self or rows.key != self.key:
            raise LostShard("these updates are of an earlier round, or of other shards; the workers hold them no more")
        return rows

    def _recipe(self, update: Tensor) -> tuple[Index, Fold, tuple[Any, ...]]:
        """What the workers are to make: of no rows where the warden left everybody out."""
        if isinstance(update, OnWorkers):
            return self._mine(update.rows).index, update.fold, update.arguments
        if update.device.type != "meta" or update.numel() != self.d:
            raise NeedsRows("an update that was not made by these shards")
        return (), "", ()

    def _ask(
        self, name: str, *arguments: Any, each: Sequence[tuple[Any, ...]] | None = None, counted: str = "sent"
    ) -> Iterator[Any]:
        """The answers of all workers, who work at the same time; one that is lost is replaced and asked again."""

        def call(i: int) -> Any:
            own = (*arguments, *each[i]) if each else arguments
            self.wire[counted] += _bytes(own)
            return getattr(self.workers[i], name).remote(*own)

        for i, answer in enumerate([call(i) for i in range(len(self.workers))]):
            found = self._answer(i, answer, call)
            self.wire["received"] += _bytes(found)
            yield found

    def _answer(self, i: int, answer: Any, call: Callable[[int], Any]) -> Any:
        for again in range(TRIES):
            try:
                if again:
                    self._replace(i)
                    answer = call(i)
                return ray.get(answer)
            except LOST as error:
                cause = error
        raise LostShard(f"{self._whose(i)} was lost {TRIES} times in one call: {cause}") from cause

    def _replace(self, i: int) -> None:
        """A new worker in place of a lost one, with the same columns read again."""
        ray.kill(self.workers[i])
        self.workers[i] = self._start(i)
        begun = self.workers[i].begin.remote(self.base, self.folder)
        opened = self.workers[i].open.remote({row: self.files[row] for row in self.held})
        _, faults = ray.get([begun, opened])
        if faults:
            gone = [f"client {c}: {faults[row]}" for c, (row, _) in self.clients.items() if row in faults]
            raise LostShard(
                f"{self._whose(i)} was lost and cannot be read again: {'; '.join(gone)}. Begin the round again without "
                "these clients; Shards(spool=...) keeps what is handed over"
            )

    def _start(self, i: int) -> Any:
        start, stop = self.columns[i]
        return ray.remote(Worker).options(num_cpus=self.cpus).remote(start, stop, self.d, self.dtype, self.cpus)

    def _whose(self, i: int) -> str:
        start, stop = self.columns[i]
        return f"worker {i + 1} of {len(self.columns)}, with columns {start} to {stop - 1},"

    def _tidy(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None


def _bytes(value: Any) -> int:
    """The bytes of what a call carries: arrays, numbers of 8 bytes, and names.

    >>> _bytes((np.zeros((2, 2)), (0, 1), {0: "a.npy"}))
    61
    """
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return _bytes([*value, *value.values()])
    if isinstance(value, list | tuple):
        return sum(map(_bytes, value))
    return len(value) if isinstance(value, str) else 8
