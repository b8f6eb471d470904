"""What a ledger costs however long a run is: a commit, a round on disk, and reading a run of 10,000 rounds.

Every reader is a process of its own; its memory is counted above ``import fedwarden``. A page is drawn by a dashboard
that is running: what it imports as it starts is counted apart, and not again for a page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from common import machine

import fedwarden as fw
from fedwarden.core.notes import Note
from fedwarden.core.types import RoundRecord, WatchRecord
from fedwarden.store.export import FORMATS
from fedwarden.store.ledger import Ledger

REPORTED = ("map/x", "map/y", "update/cosine")
PARTS = 2  # vectors by client that a watch has beside its signal and score, on average
ATTACKERS = 3
RUN = "import fedwarden.cli; fedwarden.cli.main({} + ['--home', home])"
COMMANDS = {
    "show": RUN.format("['show', '1']"),
    "runs": RUN.format("['runs']"),
    "page of the run": """
from pathlib import Path
from fedwarden.dashboard.state import Workspace
from fedwarden.dashboard.pages.run import told
from fedwarden.figures import clients, guard

workspace = Workspace(Path(home))
watch = workspace.loudest(1)
view = workspace.view(1, watch)
told(view)
guard.heatmap(view.series, watch).to_json()
guard.learning(view.series).to_json()
guard.scores(view.story, watch).to_json()
clients.similarity(view.story).to_json()
""",
    "page of a client": """
from pathlib import Path
from fedwarden.dashboard.state import Workspace
from fedwarden.dashboard.pages.client import sheet

sheet(Workspace(Path(home)).view(1), "hospital-3", False).to_plotly_json()
""",
    "report": RUN.format("['report', '1', '-o', home + '/report.html', '--force']"),
    **{f"export to {kind}": RUN.format(f"['export', '1', '-o', home + '/run.{kind}']") for kind in FORMATS},
}
PROBE = """
import json, sys, time
import fedwarden
def peak(): return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
home, before, start = sys.argv[1], peak(), time.process_time()
{imports}
cpu, wall = time.process_time(), time.perf_counter()
{command}
print("\\n" + json.dumps([time.perf_counter() - wall, time.process_time() - cpu, peak() - before, cpu - start]))
"""


def rounds(n: int, count: int) -> Iterator[RoundRecord]:
    """Rounds as the preset ``auto`` records them: its watches, what is reported, an attacker that stands out."""
    rng, clients = np.random.default_rng(0), tuple(f"hospital-{i}" for i in range(n))
    watches = [w.name for w in fw.Warden.preset("auto").watches]
    for t in range(1, count + 1):
        flagged = np.zeros(n, bool)
        flagged[rng.choice(ATTACKERS, 1)] = True
        seen = tuple(
            WatchRecord(
                name, *rng.random((2, n)), 8.0, flagged, None,
                {f"part {p}": rng.random(n) for p in range(PARTS)}, "its update lies far out",
            )
            for name in watches
        )  # fmt: skip
        notes = [
            Note.of("on_trial", clients[i], words="its update lies far out", layer="fc.weight", layers=4, share=0.62)
            for i in np.flatnonzero(flagged)
        ]
        yield RoundRecord(
            t, clients, np.full(n, 100.0), np.where(flagged, 0.0, 1.0) / n, seen, flagged,
            clients[:1] if t > 40 else (), (), tuple(notes),
            {"accuracy": 1 - 0.999**t, "loss": 0.999**t, "agreement": 0.8, "update_length": 1.0},
            reported={name: dict(zip(clients, rng.random(n).tolist(), strict=True)) for name in REPORTED},
        )  # fmt: skip


def commits(n: int, folder: Path) -> tuple[float, float]:
    """The median milliseconds of a commit around round 200 and around round 2,300."""
    took = []
    with Ledger(folder) as ledger:
        run = ledger.start("bench", "flower", {}, {})
        for record in rounds(n, 2300):
            began = perf_counter()
            ledger.append(run, record)
            took.append(1000 * (perf_counter() - began))
    return median(took[100:200]), median(took[2200:])


def read(command: str, folder: Path) -> list[float]:
    """Seconds, seconds of CPU and MB of a reader in a process of its own, and seconds of CPU of its imports before."""
    imports, _, command = command.rpartition("\n\n")
    probe = [sys.executable, "-c", PROBE.format(imports=imports, command=command), str(folder)]
    done = subprocess.run(probe, stdout=subprocess.PIPE, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=100)
    args = parser.parse_args()
    print(f"{machine()}\n")
    with TemporaryDirectory() as folder:
        early, late = commits(60, Path(folder))
    print(
        f"A commit of 60 clients: {early:.1f} ms after 200 rounds, {late:.1f} ms after 2,300; {late / early:.2f} times."
    )
    with TemporaryDirectory() as folder:
        with Ledger(Path(folder)) as ledger:
            ledger.db.execute("PRAGMA synchronous = OFF")
            run = ledger.start("bench", "flower", {"rounds": args.rounds}, {})
            for record in rounds(args.clients, args.rounds):
                ledger.append(run, record)
        size = ledger.path.stat().st_size / args.rounds / 1024
        print(f"A round of {args.clients} clients: {size:.1f} KB.\n")
        print(f"| {args.rounds:,} rounds x {args.clients} clients | s | s of CPU | MB | imports before |")
        print("|---|---|---|---|---|")
        for name, command in COMMANDS.items():
            print(f"| {name} | {' | '.join(f'{value:.1f}' for value in read(command, Path(folder)))} |", flush=True)


if __name__ == "__main__":
    main()
