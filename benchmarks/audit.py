"""What an auditor adds to a client's round, on the paper's MNIST model.

    python benchmarks/audit.py               about five minutes
    python benchmarks/audit.py --quick       about a minute

Prints Markdown. Training is measured on some batches and scaled to the round (6,700 samples, two local epochs, batches
of 32, Adam); the auditor is measured whole, on the third round and later, when every source speaks. One thread.
"""

from __future__ import annotations

import argparse
from statistics import median

import torch
from common import at_most, machine, say, seconds, show, spread
from torch import nn

from fedwarden.audit import Auditor
from fedwarden.sim.models import build_model

SAMPLES, EPOCHS, BATCH = 6700, 2, 32
BAR = 5.0
SOURCES = ("weights", "gradients", "representations", "outputs", "evaluation")


def train(model: nn.Module, batches: int) -> None:
    """Some steps of local training."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x, y = torch.rand(BATCH, 1, 28, 28), torch.arange(BATCH) % 10
    for _ in range(batches):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def rounds_of(model: nn.Module, sources: tuple[str, ...], probe: int, repeats: int) -> list[float]:
    """Seconds of some rounds of an auditor."""
    generator = torch.Generator().manual_seed(0)
    auditor = Auditor(model, torch.rand(probe, 1, 28, 28), torch.arange(probe) % 10, n=2, sources=sources)
    own = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    models = [own + 1e-3 * torch.randn(len(own), generator=generator) for _ in range(repeats + 2)]
    times = [seconds(lambda t=t, m=m: auditor.observe(t, m, own)) for t, m in enumerate(models, start=1)]
    return times[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer batches and rounds")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print(f"{machine()}\n")
    model = build_model("audit_cnn", {}, (1, 28, 28), 10, seed=0)
    batches, repeats = (10, 3) if quick else (30, 8)
    say("training")
    train(model, 3)
    steps = EPOCHS * -(-SAMPLES // BATCH)
    rows, training = [], []
    for probe in (64, 128):
        for sources in (SOURCES, *((s,) for s in SOURCES)):
            say(f"{probe} samples, {', '.join(sources)}")
            training.append(seconds(lambda: train(model, batches)) * steps / batches)
            found = rounds_of(model, sources, probe, repeats)
            share = 100 * median(found) / median(training)
            bar = BAR if sources == SOURCES else None
            name = "all of them" if sources == SOURCES else sources[0]
            rows.append(
                [probe, name, spread([1000 * x for x in found], 0), f"{share:.2f} %", at_most(share, bar, " %")]
            )
    note = f"Local training of the round: {spread(training, 1)} s, scaled from {batches} batches of {steps}."
    show(
        "The auditor's share of a round, MNIST, 1.2 M parameters",
        ("probe samples", "sources", "milliseconds a round", "of local training", "bar"),
        rows,
        note,
    )


if __name__ == "__main__":
    main()
