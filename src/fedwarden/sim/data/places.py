"""Where files lie: the folders of data, and the folder of what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def folders(folder: str | None = None) -> list[Path]:
    """Where data files are looked for, in order."""
    places = [folder, os.environ.get("FEDWARDEN_DATA"), "../shared/data"]
    return [Path(p).expanduser() for p in places if p]


MINILM = "minilm_mlm"  # a masked language model that lies among the data, and not on the hub


def model_folder(name: str, folder: str | None = None) -> Path | None:
    """The folder of a language model: the path itself, or of that name among the data; None: it is to be on the hub."""
    places = [Path(name).expanduser(), *(place / name for place in folders(folder))]
    found = next((place for place in places if place.is_dir()), None)
    if found is None and name == MINILM:
        raise FileNotFoundError("which is not on the hub")
    return found


def cache_folder() -> Path | None:
    """Where to keep what can be made again: $FEDWARDEN_CACHE, else the user's cache folder; None where is neither."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(os.environ.get("FEDWARDEN_CACHE") or Path(home) / "fedwarden")
