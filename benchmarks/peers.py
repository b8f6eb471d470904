"""Flower and ByzFL as plain functions (rows, **options) -> (d,), for the conformance suite and the benchmarks.

Needs the environment of `make peers`; from this folder:
``../.venv-peers/bin/python -m fedwarden_research.conformance peers:flower_krum --rule krum``.
Options have the suite's names; a default is the library's own.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from dataclasses import dataclass
from typing import Any
from unittest.mock import MagicMock

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import Bulyan, FedAvg, FedMedian, FedTrimmedAvg, Krum, MultiKrum

for _name in ("torchvision", "torchvision.transforms", "matplotlib", "matplotlib.pyplot", "seaborn"):
    sys.modules.setdefault(_name, MagicMock())  # byzfl imports them; its aggregators never use them

import byzfl  # noqa: E402

logging.getLogger("flwr").setLevel(logging.ERROR)
gc.freeze()  # Flower's Bulyan collects garbage after every array: what is imported need not be searched


@dataclass(frozen=True)
class Reply:
    """As much of a Flower message as a strategy looks at."""

    content: RecordDict

    def has_error(self) -> bool:
        return False


def flower(strategy: Any, rows: Any, num_examples: Any = None) -> list[np.ndarray] | None:
    """What a strategy makes of one round; None where it makes nothing."""
    counts = [1] * len(rows) if num_examples is None else [int(count) for count in num_examples]
    replies = []
    for client, count in zip(rows, counts, strict=True):
        layers = client if isinstance(client, list) else [client]
        arrays = ArrayRecord({str(i): Array(_numpy(layer)) for i, layer in enumerate(layers)})
        replies.append(Reply(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": count})})))
    result, _ = strategy.aggregate_train(1, replies)
    return None if result is None else [array.numpy() for array in result.values()]


def flower_mean(rows: Any, num_examples: Any = None) -> Any:
    return flower(FedAvg(), rows, num_examples)


def flower_median(rows: Any, num_examples: Any = None) -> Any:
    return flower(FedMedian(), rows, num_examples)


def flower_trimmed_mean(rows: Any, b: int | None = None, num_examples: Any = None) -> Any:
    """The strategy takes a share of n; the smallest one that cuts b is given."""
    beta = 0.2 if b is None else min((b + 1e-9) / len(rows), 0.5)
    return flower(FedTrimmedAvg(beta=beta), rows, num_examples)


def flower_krum(rows: Any, f: int = 0, num_examples: Any = None) -> Any:
    return flower(Krum(num_malicious_nodes=f), rows, num_examples)


def flower_multi_krum(rows: Any, f: int = 0, m: int = 1, num_examples: Any = None) -> Any:
    return flower(MultiKrum(num_malicious_nodes=f, num_nodes_to_select=m), rows, num_examples)


def flower_bulyan(rows: Any, f: int = 0, num_examples: Any = None) -> Any:
    return flower(Bulyan(num_malicious_nodes=f), rows, num_examples)


def byzfl_mean(rows: Any) -> Any:
    return byzfl.Average()(rows)


def byzfl_median(rows: Any) -> Any:
    return byzfl.Median()(rows)


def byzfl_trimmed_mean(rows: Any, b: int = 0) -> Any:
    return byzfl.TrMean(f=b)(rows)


def byzfl_krum(rows: Any, f: int = 0) -> Any:
    return byzfl.Krum(f=f)(rows)


def byzfl_multi_krum(rows: Any, f: int = 0, m: int | None = None) -> Any:
    """The class has no m: it always averages n - f rows."""
    return byzfl.MultiKrum(f=f)(rows)


def byzfl_geometric_median(rows: Any) -> Any:
    return byzfl.GeometricMedian()(rows)


def byzfl_centered_clipping(rows: Any, limit: float = 100.0, steps: int = 1) -> Any:
    return byzfl.CenteredClipping(L=steps, tau=limit)(rows)


def byzfl_norm_clipping(rows: Any, limit: float = 2.0) -> Any:
    return byzfl.Average()(byzfl.Clipping(c=limit)(rows))


def byzfl_nearest_neighbour_mixing(rows: Any, f: int, then: str) -> Any:
    after = {"mean": byzfl.Average, "median": byzfl.Median}[then]()
    return after(byzfl.NNM(f=f)(rows))


def _numpy(layer: Any) -> np.ndarray:
    return layer.numpy() if isinstance(layer, torch.Tensor) else np.asarray(layer)
