"""Build the wheel, install it into an empty environment, and run the demo there: ``make wheel``.

The environment has what the wheel asks for and no extras, at the versions of constraints.txt; torch comes first, as in
``make setup``. The demo runs in an empty folder with an empty home, and a proxy that does not answer keeps it from
fetching anything. The wheel stays in dist/ and the environment in .venv-wheel, to be emptied by the next call.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
MINUTES = 20  # at most, of any one step: a first install has torch to fetch
NOWHERE = "http://127.0.0.1:9"


def build(folder: Path) -> Path:
    """The only wheel in the folder; it is typed, and older ones are gone."""
    for old in folder.glob("fedwarden-*.whl"):
        old.unlink()
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    (wheel,) = folder.glob("fedwarden-*.whl")
    if "fedwarden/py.typed" not in zipfile.ZipFile(wheel).namelist():
        sys.exit(f"{wheel} has no fedwarden/py.typed; type checkers would ignore its annotations")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Make an environment with the wheel; the folder of its commands."""
    venv.create(folder, clear=True, symlinks=True)
    torch = next(line for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if line.startswith("torch=="))
    pip = (sys.executable, "-m", "pip", "--python", folder, "install", "--quiet", "--no-compile")
    call(*pip, torch)
    call(*pip, "-c", CONSTRAINTS, wheel)
    return folder / "bin"


def try_out(commands: Path, home: Path, version: str) -> None:
    """The version is the wheel's, and the demo runs with nothing around it."""
    bare = {
        "HOME": str(home), "PATH": os.defpath, "http_proxy": NOWHERE, "https_proxy": NOWHERE, "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    said = call(commands / "fedwarden", "--version", env=bare, cwd=home)
    if version not in said.split():
        sys.exit(f"fedwarden --version says {said.strip()!r}; the wheel is of version {version}")
    print(call(commands / "fedwarden", "demo", env=bare, cwd=home))


def call(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command to its end; what it printed."""
    started = time.perf_counter()
    done = subprocess.run(
        list(map(str, command)), env=env, cwd=cwd, stdout=subprocess.PIPE, text=True, timeout=60 * MINUTES
    )
    words = " ".join(Path(word).name for word in map(str, command))
    print(f"{time.perf_counter() - started:6.1f} s  {words}", flush=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{words} ended with {done.returncode}; expected 0")
    return done.stdout


def main() -> None:
    wheel = build(ROOT / "dist")
    commands = install(wheel, ROOT / ".venv-wheel")
    with TemporaryDirectory(prefix="fedwarden-") as home:
        try_out(commands, Path(home), wheel.name.split("-")[1])
    print(wheel.relative_to(ROOT))


if __name__ == "__main__":
    main()
