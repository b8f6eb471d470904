"""A page of the dashboard as a picture: ``python tools/screenshot.py WORKSPACE FILE.png --page /run/2 --dark``."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from fedwarden.dashboard.server import prepare

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SETTLED = 8000  # milliseconds of the page's own time, in which it loads and draws
PATIENCE = 180  # seconds for one picture


def screenshot(folder: Path, file: Path, page: str = "/", dark: bool = False) -> None:
    """Write a page of a workspace's dashboard as PNG."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), BROWSERS[0])
    server, address = prepare(folder, "127.0.0.1", 0)
    Thread(target=server.run, daemon=True).start()
    theme = f"{'&' if '?' in page else '?'}theme={'dark' if dark else 'light'}"
    with TemporaryDirectory(prefix="fedwarden-", ignore_cleanup_errors=True) as profile:
        command = [
            browser, "--headless=new", "--hide-scrollbars", "--disable-dev-shm-usage", "--no-first-run",
            f"--user-data-dir={profile}", "--window-size=1280,900", "--force-device-scale-factor=1",
            f"--virtual-time-budget={SETTLED}", f"--screenshot={file.absolute()}",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # Chromium's sandbox refuses root
            f"{address.rstrip('/')}/{page.lstrip('/')}{theme}",
        ]  # fmt: skip
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
        finally:
            server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--page", default="/")
    parser.add_argument("--dark", action="store_true")
    asked = parser.parse_args()
    screenshot(asked.workspace, asked.file, asked.page, asked.dark)


if __name__ == "__main__":
    main()
