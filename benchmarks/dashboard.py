"""How long the dashboard takes in a browser: the first view of a run, a new round of a live one, a what-if.

Server and browser are started afresh for every size and share this machine's cores. A view counts when its figures are
drawn; a round from the moment its transaction is committed to the moment it shows.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import numpy as np
from common import machine
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from fedwarden.core.types import RoundRecord, WatchRecord
from fedwarden.store.ledger import Ledger

SIZES = ((50, 100), (1000, 500))  # clients, rounds
WATCHES = ("evidence", "direction", "gross", "twins")
LIVE = 5  # rounds that are added while the page is open
PATIENCE = 60
DRAWN = """
const plot = id => document.querySelector(`#${id} .js-plotly-plot`);
return ["heatmap", "scores", "learning"].every(id => plot(id)?.data?.length > 0)
  && document.querySelector("#heatmap .heatmaplayer image") !== null && document.querySelector("#worst td") !== null;
"""
SHOWN = """
const maps = document.querySelector("#heatmap .js-plotly-plot").data.filter(trace => trace.type === "heatmap");
const last = maps[maps.length - 1].x.slice(-1)[0];
return last.split(/[^0-9]+/).pop() === arguments[0]
  && document.querySelector("#summary").innerText.includes(arguments[1]);
"""


def record(t: int, n: int, rng: np.random.Generator) -> RoundRecord:
    """A round in which the first three clients stand out more and more; they are excluded from round 40 on."""
    watches = []
    for name in WATCHES:
        scores = rng.gamma(2, size=n)
        scores[:3] += 0.1 * t
        watches.append(WatchRecord(name, scores, scores, 8.0, scores > 8, words="it lies apart"))
    clients = tuple(map(str, range(n)))
    gone = clients[:3] if t > 40 else ()
    metrics = {"accuracy": 1 - 0.9**t, "loss": 0.9**t}
    even, counts = np.full(n, 1 / n), np.full(n, 100.0)
    return RoundRecord(t, clients, counts, even, tuple(watches), watches[0].flagged, gone, metrics=metrics)


@contextmanager
def serve(home: Path) -> Iterator[str]:
    """The address of a dashboard in a process of its own."""
    command = [sys.executable, "-m", "fedwarden", "dashboard", "--home", str(home), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1].rstrip("/")
        finally:
            process.terminate()


@contextmanager
def browse() -> Iterator[Any]:
    """A Chromium that has seen nothing yet."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or sys.exit("needs chromium and chromedriver")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1360,1000"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def wait(driver: Any, script: str, *arguments: str) -> float:
    """When a condition has come true."""
    WebDriverWait(driver, PATIENCE, 0.02).until(lambda d: d.execute_script(script, *arguments))
    return perf_counter()


def measure(n: int, rounds: int, folder: Path) -> list[str]:
    """Seconds to the first view, to the page opened again, to a new round, and to a what-if."""
    rng = np.random.default_rng(0)
    with Ledger(folder) as ledger:
        ledger.db.execute("PRAGMA synchronous = OFF")
        run = ledger.start("bench", "in-process", {"rounds": rounds + LIVE}, {})
        for t in range(1, rounds + 1):
            ledger.append(run, record(t, n, rng))
        with serve(folder) as address, browse() as driver:
            began = perf_counter()
            driver.get(f"{address}/run/{run}")
            first = wait(driver, DRAWN) - began
            began = perf_counter()
            driver.get(f"{address}/run/{run}")
            again = wait(driver, DRAWN) - began
            live = []
            for t in range(rounds + 1, rounds + LIVE + 1):
                sleep(1.5 + rng.random())  # so that commits fall anywhere between two looks
                ledger.append(run, record(t, n, rng))
                began = perf_counter()
                live.append(wait(driver, SHOWN, str(t), f"{t} of") - began)
            began = perf_counter()
            driver.get(f"{address}/run/{run}/what-if?rule=k_sigma")
            asked = wait(driver, 'return document.querySelector("#verdict-card") !== null') - began
    return [f"{n:,} x {rounds}", *(f"{x:.2f}" for x in (first, again, median(live), max(live), asked))]


def main() -> None:
    """Print one row per size."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(machine())
    print("| clients x rounds | first view | opened again | new round, median | worst of 5 | what if |")
    print("|---|---|---|---|---|---|")
    for n, rounds in SIZES:
        with TemporaryDirectory() as folder:
            print("| " + " | ".join(measure(n, rounds, Path(folder))) + " |", flush=True)


if __name__ == "__main__":
    main()
