"""Shared by all tests: their order, repeatable hypothesis runs, a cohort from plain rows, and a browser."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from numpy.typing import ArrayLike

import fedwarden as fw
from fedwarden.core import plugins, registry
from fedwarden.core.types import WatchRecord

CohortOf = Callable[..., fw.Cohort]

os.environ.pop("COLUMNS", None)  # of the terminal outside: a console that is made while it is set keeps that width
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))  # shards refuse a Ray without a secret

LONGEST = (  # files by the time of their slow tests, measured on two cores: from six minutes down to half of one
    "flower/test_deployment.py",
    "flower/test_bundles.py",
    "flare/test_job.py",
    "test_docs.py",
    "updates/test_device_code.py",
    "adversary/test_processes.py",
    "adversary/test_faults.py",
    "adversary/test_ledgers.py",
    "sim/test_on_flower.py",
    "adversary/test_flower_replies.py",
    "tools/test_site.py",
    "dashboard/test_browser.py",
)

settings.register_profile(
    "quick",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("quick")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first, the longest before all: begun last, they would leave one process busy and the others idle."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}

    def place(item: pytest.Item) -> int:
        if item.get_closest_marker("slow") is None:
            return len(places) + 1
        return places.get(item.path, len(places))

    items.sort(key=place)


@pytest.fixture(scope="session")
def cohort_of() -> CohortOf:
    """A cohort from rows; ids are a, b, c, ... and every client has ten examples unless told."""

    def build(
        rows: Any,
        ids: Sequence[str] | None = None,
        counts: ArrayLike | None = None,
        round: int = 1,
        trusted: Sequence[bool] = (),
        params: torch.Tensor | None = None,
    ) -> fw.Cohort:
        updates = fw.Updates.of(rows)
        ids = tuple(ids or (chr(ord("a") + i) for i in range(len(updates))))
        counts = np.full(len(updates), 10.0) if counts is None else np.asarray(counts, dtype=float)
        return fw.Cohort(round, ids, updates, counts, params, np.asarray(trusted, bool))

    return build


@pytest.fixture(scope="session")
def played(cohort_of: CohortOf) -> list[fw.RoundRecord]:
    """Six rounds of eight clients: h lies far out and is excluded in round 2, b sends infinities in round 4."""
    warden = fw.Warden(
        [fw.Watch("centroid_distance", "raw", {"name": "robust_z", "limit": 6.0}, name="far")], "quarantine"
    )
    records = []
    for t in range(1, 7):
        ids = [c for c in "abcdefgh" if warden.asks(c)]
        rows = np.random.default_rng(t).normal(size=(len(ids), 5))
        if "h" in ids:
            rows[ids.index("h")] += 90.0
        if t == 4:
            rows[ids.index("b")] = np.inf
        record = warden.step(cohort_of(rows, ids=ids, round=t)).record
        records.append(replace(record, metrics={"accuracy": t / 10, "loss": 1 / t}))
    return records


@pytest.fixture(scope="session")
def weighed(played: list[fw.RoundRecord]) -> list[fw.RoundRecord]:
    """The same rounds with harm measured in them: a helps, g does harm, of the others nothing can be told."""
    records = []
    for r in played:
        noise = np.random.default_rng(r.round).normal(0.0, 0.001, size=len(r.client_ids))
        harm = noise + [{"a": -0.02, "g": 0.05}.get(c, 0.0) for c in r.client_ids]
        watch = WatchRecord("harm", harm, harm, 3.0, np.zeros(len(harm), bool), words="it does harm")
        records.append(replace(r, watches=(*r.watches, watch)))
    return records


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One Chromium without a window for all tests; use ``browser``."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("needs chromium and chromedriver, as in Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options, webdriver.ChromeService(driver))
    found.set_script_timeout(300)  # on a busy machine a page stands still for a minute while it reads Plotly
    yield found
    found.quit()


@pytest.fixture
def browser(chromium: Any, media: Callable[..., None]) -> Iterator[Any]:
    """A Selenium driver on a blank page; the test fails if a page wrote an error to its console."""
    chromium.set_window_size(1280, 900)
    media()
    chromium.get("about:blank")
    chromium.get_log("browser")
    yield chromium
    assert not [entry["message"] for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture
def media(chromium: Any) -> Callable[..., None]:
    """Set what pages are shown on: ``media(dark=True)`` or ``media(paper=True)``."""

    def choose(dark: bool = False, paper: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        chromium.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": "print" if paper else "", "features": [scheme]}
        )

    return choose


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small models gain nothing from more, and wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def the_signals_of_the_others() -> Iterator[None]:
    """Ray puts a handler of its own in place, and leaves it there."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def forgetful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the test registers and what it imports from its folder is forgotten afterwards."""
    for kind in registry.FOLDERS:
        registry.names(kind)  # found now, so that only what the test adds is forgotten
    monkeypatch.setattr(registry, "_entries", {kind: dict(table) for kind, table in registry._entries.items()})
    monkeypatch.setattr(registry, "_adopted", dict(registry._adopted))
    monkeypatch.setattr(plugins, "_files", dict(plugins._files))
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]
