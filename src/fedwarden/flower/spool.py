"""Replies whose arrays wait on disk until they are folded."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
from flwr.app import Array, Message

from ..core.errors import ConfigError
from ..core.words import reason
from ..guard.arrays import Unfit
from .records import BFLOAT16, Stored, view

LINE = 64  # bytes at a multiple of which an array begins, so that its numbers are aligned


class Spool:
    """A folder for the arrays of replies: each reply in a file without a name, which is freed with the last reference.

    The system frees the space too if the process is killed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            TemporaryFile(dir=self.folder).close()
        except OSError as error:
            raise ConfigError(f"spool needs a folder that can be written to; got {folder}: {reason(error)}") from error

    def keep(self, message: Message) -> Message:
        """The message with its arrays on disk, or :class:`Unfit` if there is no room for them."""
        places = []
        try:
            with TemporaryFile(dir=self.folder) as file:
                for record in message.content.array_records.values() if message.has_content() else ():
                    for name, array in list(record.items()):
                        plain = Array(view(array)) if array.dtype == BFLOAT16 else array  # NumPy has no bfloat16
                        start = file.seek(-(-file.tell() // LINE) * LINE)
                        places.append((record, name, plain, slice(start, start + file.write(plain.data))))
                file.flush()
                whole = np.memmap(file, np.uint8, "r") if file.tell() else np.zeros(0, np.uint8)
        except OSError as error:
            raise Unfit.of("not_stored", error=reason(error)) from error
        for record, name, plain, place in places:
            record[name] = Stored(plain, whole[place])
        return message
