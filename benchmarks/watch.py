"""What the geometric divergence of a round costs beside a bare forward pass of the same client models.

    python benchmarks/watch.py                  about five minutes
    python benchmarks/watch.py --quick          less than a minute
    python benchmarks/watch.py --only mlp --clients 10

Prints Markdown. The floor runs every client's model on the same probe: ``torch.func.functional_call`` in a loop, the
weights ready-made. Floor and signal take turns, and a ratio is that of two neighbouring measurements. The signal's time
covers reading the updates, the global model, all client models, affinities and divergences.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from common import at_most, machine, say, seconds, show
from torch.func import functional_call

import fedwarden as fw
from fedwarden.core.registry import make
from fedwarden.models.layout import Layout
from fedwarden.sim.models import build_model

BAR = 1.15


@dataclass(frozen=True)
class Kind:
    """A model by name and options, the shape of a sample, how many make the probe, and how many classes there are."""

    model: str
    options: dict[str, Any]
    shape: tuple[int, ...]
    probe: int = 128
    classes: int = 10

    def samples(self, generator: torch.Generator) -> torch.Tensor:
        """Random images, or texts of random tokens."""
        if len(self.shape) == 1:
            return torch.randint(self.classes, (self.probe, *self.shape), generator=generator)
        return torch.randn(self.probe, *self.shape, generator=generator)


MODELS = {
    "mlp": Kind("mlp", {"hidden": (128, 128)}, (1, 28, 28)),
    "resnet18": Kind("resnet18", {}, (3, 32, 32)),
    "minilm": Kind("masked_lm", {}, (16,), 8, 30522),
}


class Round:
    """A global model and n clients near it, as whole models over the global one, the way replies arrive."""

    def __init__(self, name: str, n: int) -> None:
        kind, generator = MODELS[name], torch.Generator().manual_seed(0)
        self.model = build_model(kind.model, kind.options, kind.shape, kind.classes, seed=0).eval()
        self.samples = kind.samples(generator)
        self.layout, self.n = Layout.of(self.model), n
        self.params = self.layout.flatten(self.model.state_dict())
        moved = torch.zeros(self.layout.d)
        for a, b in self.layout.measured:
            moved[a:b] = 0.01
        noise = torch.randn(n, self.layout.d, generator=generator)
        self.rows = self.params + moved * noise
        self.states = [self.layout.unflatten(row) for row in self.rows]
        self.signal = make("signal", "divergence", probe=kind.probe).equip(fw.Server(self.model, self.samples))

    def cohort(self) -> fw.Cohort:
        updates = fw.Updates.of(self.rows, self.params, self.layout.measured)
        updates = updates.knowing(updates.survey())  # a warden has read the norms before it asks its signals
        return fw.Cohort(1, tuple(map(str, range(self.n))), updates, np.ones(self.n), self.params)

    def floor(self) -> None:
        with torch.no_grad():
            for state in self.states:
                functional_call(self.model, state, (self.samples,))

    def measure(self, cohort: fw.Cohort) -> fw.Reading:
        return self.signal(cohort)  # type: ignore[no-any-return]


def ratios(played: Round, repetitions: int) -> list[tuple[float, float]]:
    """(floor, signal) seconds of every repetition; a new cohort each time, as nothing may be remembered."""
    if not np.isfinite(played.measure(played.cohort()).values).all():
        raise SystemExit("the signal gave no numbers; its time would mean nothing")
    played.floor()
    pairs = []
    for _ in range(repetitions):
        cohort = played.cohort()
        floor = seconds(played.floor)
        pairs.append((floor, seconds(lambda cohort=cohort: played.measure(cohort))))
    return pairs


def table(names: Sequence[str], numbers: Sequence[int], repetitions: Callable[[str], int]) -> None:
    where, rows = f"{torch.get_num_threads()} threads", []
    for name in names:
        for n in numbers:
            say(f"{name}: n = {n}, {where}")
            played = Round(name, n)
            pairs = ratios(played, repetitions(name))
            each = [b / a for a, b in pairs]
            floor, ours = (1000 * median(p[k] for p in pairs) for k in (0, 1))
            rows.append(
                [name, f"{played.layout.d:,}", n, f"{floor:.1f}", f"{ours:.1f}", f"{median(each):.2f}",
                 f"{min(each):.2f}", at_most(median(each), BAR)]
            )  # fmt: skip
    show(
        f"Geometric divergence, {where}",
        ("model", "d", "n", "bare forward, ms", "signal, ms", "median ratio", "smallest", "bar"),
        rows,
        "Probe of 128 samples, of the language model 8 texts of 16 tokens, float32. Bare forward: the n client models, "
        "one after another; the signal runs the global one too. Medians of neighbouring measurements.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer clients and repetitions")
    parser.add_argument("--clients", type=int, nargs="+", metavar="N", help="default: 10 and 50, with --quick 10")
    parser.add_argument("--repetitions", type=int, metavar="N", help="default: 31 for mlp, 5 for others")
    parser.add_argument("--only", choices=tuple(MODELS), nargs="+", default=list(MODELS), help="some of the models")
    args = parser.parse_args()
    numbers = args.clients or ((10,) if args.quick else (10, 50))
    usual = {"mlp": 11} if args.quick else {"mlp": 31}
    print(f"## Watch\n\n{machine()}.\n")
    for threads in sorted({1, torch.get_num_threads()}):
        torch.set_num_threads(threads)
        table(args.only, numbers, lambda name: args.repetitions or usual.get(name, 1 if args.quick else 5))


if __name__ == "__main__":
    main()
