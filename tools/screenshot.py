"""A page of the dashboard as a picture: ``python tools/screenshot.py WORKSPACE FILE.png --page /run/2 --dark``."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from fedwarden.core.errors import FedwardenError
from fedwarden.dashboard.server import prepare

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SETTLED = 8000  # milliseconds of the page's own time, in which it loads and draws
PATIENCE = 180  # seconds for one picture


def screenshot(
    folder: Path, file: Path, page: str = "/", dark: bool = False, size: tuple[int, int] = (1280, 900)
) -> None:
    """Write a page of a workspace's dashboard as PNG."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise FedwardenError(f"a picture needs one of {', '.join(BROWSERS)}; install one, as by apt install chromium")
    server, address = prepare(folder, "127.0.0.1", 0)
    Thread(target=server.run, daemon=True).start()
    theme = f"{'&' if '?' in page else '?'}theme={'dark' if dark else 'light'}"
    file.unlink(missing_ok=True)
    try:
        said = _photograph(browser, address.rstrip("/") + "/" + page.lstrip("/") + theme, file, size)
    finally:
        server.close()
    if not file.is_file():
        last = (said.strip().splitlines() or ["it gave no reason"])[-1]
        raise FedwardenError(f"{browser} wrote no picture to {file}: {last}")


def _photograph(browser: str, url: str, file: Path, size: tuple[int, int]) -> str:
    """Have a browser draw a page into a file; what it said."""
    with TemporaryDirectory(prefix="fedwarden-", ignore_cleanup_errors=True) as profile:
        command = [
            browser, "--headless=new", "--hide-scrollbars", "--disable-dev-shm-usage", "--no-first-run",
            f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}", "--force-device-scale-factor=1",
            f"--virtual-time-budget={SETTLED}", f"--screenshot={file.absolute()}", url,
        ]  # fmt: skip
        if os.geteuid() == 0:  # Chromium's sandbox refuses root
            command.insert(1, "--no-sandbox")
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE).stderr


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
