"""How log lines look: words, or, where FEDWARDEN_LOG is "json", one JSON object a line."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime

from .words import printable

FORM = "FEDWARDEN_LOG"
HEADS = {logging.WARNING: "warning ", logging.ERROR: "error: "}


class Words(logging.Formatter):
    """What is said, with what steers a terminal written out."""

    def format(self, record: logging.LogRecord) -> str:
        return HEADS.get(record.levelno, "") + printable(record.getMessage())


class JsonLines(logging.Formatter):
    """Time, level, name of the logger and message."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        message = record.getMessage() + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")
        return json.dumps({"time": at, "level": record.levelname.lower(), "logger": record.name, "message": message})


def json_lines(name: str) -> None:
    """Give another package's logger JSON lines too, where they are wanted."""
    if os.environ.get(FORM) == "json":
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines())
        logging.getLogger(name).handlers = [handler]
