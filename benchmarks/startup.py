"""What it costs to start: imports beside ``import torch``, and the commands that only read a run; seconds of CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from common import at_most, machine, say, show, spread

TURNS = 5  # of each, in turn, so that a slow minute of the machine meets all of them
IMPORTS = {  # what is imported: the bar, in times of `import torch`
    "import torch": None,
    "import fedwarden": 1.3,
    "from fedwarden import Warden": 1.3,
    "from fedwarden.flower import Guarded": None,
    "from fedwarden.flower import audit_mod": None,
}
FLOWER = "import torch, flwr.app, flwr.clientapp, flwr.serverapp.strategy, flwr.superlink.grid"
COMMANDS = {"--help": None, "runs": 1.5, "show 1": 1.5, "show 1 --round 5": 1.5}  # the bar in seconds
SCENE = """
rounds = 20
data = {clients = 20}
model = {name = "mlp", hidden = [16]}
attacks = [{name = "label_flip", count = 3}]
"""


def cpu(command: Sequence[str], folder: str) -> float:
    """User and system time of a process and of its children."""
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env={**os.environ, "FEDWARDEN_HOME": folder, "FLWR_TELEMETRY_ENABLED": "0"}
    )
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{command} ended with {child.returncode}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print both tables."""
    with TemporaryDirectory() as folder:
        scene = Path(folder) / "scene.toml"
        scene.write_text(SCENE)
        fedwarden = [sys.executable, "-m", "fedwarden"]
        cpu([*fedwarden, "run", str(scene), "--quiet"], folder)
        code = {words: [sys.executable, "-c", words] for words in (*IMPORTS, FLOWER)}
        calls = code | {words: [*fedwarden, *words.split()] for words in COMMANDS}
        times: dict[str, list[float]] = {words: [] for words in calls}
        for turn in range(TURNS + 1):  # the first one fills the disk's cache
            say(f"turn {turn} of {TURNS}")
            for words, call in calls.items():
                spent = cpu(call, folder)
                times[words] += [spent] if turn else []
    floor = median(times["import torch"])
    rows = []
    for words, bar in {**IMPORTS, FLOWER: None}.items():
        ratio = median(times[words]) / floor
        rows.append([f"`{words}`", spread(times[words]), f"{ratio:.2f}", at_most(ratio, bar)])
    show("Imports", ("in a fresh interpreter", "CPU seconds", "times `import torch`", "bar"), rows)
    rows = [
        [f"`fedwarden {words}`", spread(times[words]), at_most(median(times[words]), bar, " s")]
        for words, bar in COMMANDS.items()
    ]
    show("Commands", ("command", "CPU seconds", "bar"), rows, f"Medians of {TURNS}. {machine()}")


if __name__ == "__main__":
    main()
