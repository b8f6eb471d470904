"""The folds of updates on a GPU: Triton kernels and plain torch, beside one read of the same memory.

    python benchmarks/folds.py                  a minute, most of it compiling; needs a CUDA device and Triton

Prints Markdown. One read is the faster of ``torch.sum(dim=0)`` and ``ones @ x``. Every time is the smallest of some
calls, each from an idle device to an idle device; errors are parts of the largest entry of what plain torch gives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from common import machine, show

from fedwarden.updates import gpu, plain
from fedwarden.updates.updates import Updates

SIZES = ((50, 11_173_962), (100, 5_600_000), (200, 2_800_000), (20, 1_199_882))
LAYERS = 7
Fold = Callable[[Any, Updates], tuple[Any, ...]]


def fastest(work: Callable[[], Any], calls: int) -> float:
    """Seconds of the fastest of some calls, after one that does not count."""
    work()
    times = []
    for _ in range(calls):
        torch.cuda.synchronize()
        start = perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(perf_counter() - start)
    return min(times)


def folds(n: int) -> dict[str, Fold]:
    even, uneven = np.full(n, 1 / n), np.linspace(1, 2, n) / n
    return {
        "survey": lambda end, u: end.survey(u, even, uneven, True),
        "weighted sum": lambda end, u: (end.weighted_sum(u, uneven, None, 1.0),),
        "inner products": lambda end, u: (end.gram(u, 0),),
        "median": lambda end, u: (end.ranked_mean(u, (n - 1) // 2, n // 2 + 1),),
        "nearest to the median": lambda end, u: (end.nearest_mean(u, n // 2),),
    }


def error(got: Any, wanted: Any) -> float:
    a, b = (torch.as_tensor(x).double().cpu() for x in (got, wanted))
    return float((a - b).abs().max() / b.abs().max())


def rows_of(stack: torch.Tensor) -> dict[str, Any]:
    """Layers are tensors of their own, as replies bring them: a part of a row may begin at any address."""
    layers = [[part.clone() for part in row.tensor_split(LAYERS)] for row in stack]
    halves = [[part.bfloat16() for part in row] for row in layers]
    return {"one tensor": stack, "layers": layers, "layers, bfloat16": halves}


def table(n: int, d: int) -> None:
    stack = 0.01 * torch.randn(n, d, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    ones = torch.ones(1, n, device="cuda")
    read = min(fastest(lambda: stack.sum(dim=0), 10), fastest(lambda: ones @ stack, 10))
    found = []
    for held, rows in rows_of(stack).items():
        updates = Updates.of(rows)
        for name, fold in folds(n).items():
            ours, theirs = (fastest(partial(fold, end, updates), 4) / read for end in (gpu, plain))
            pairs = zip(fold(gpu, updates), fold(plain, updates), strict=True)
            worst = max(error(got, wanted) for got, wanted in pairs)
            found.append([name, held, f"{ours:.1f}", f"{theirs:.1f}", f"{worst:.0e}"])
    header = ("fold", "rows", "kernels, reads", "torch, reads", "largest error")
    show(f"n = {n}, d = {d:,}", header, found, f"One read takes {1000 * read:.3f} ms.")


def main() -> None:
    if not torch.cuda.is_available() or gpu.kernels() is None:
        raise SystemExit("needs a CUDA device and Triton")
    print(f"## Folds on {torch.cuda.get_device_name()}\n\n{machine()}.\n", flush=True)
    for n, d in SIZES:
        table(n, d)


if __name__ == "__main__":
    main()
