"""A round as data points, and how they are named everywhere they are sent to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import Literal, NamedTuple
from urllib.parse import quote

from ..core.reported import ACROSS, UP
from ..core.types import RoundRecord
from ..store.ledger import Run

Clients = Literal["all", "flagged"]
MOST = 200  # clients of a round that are sent one by one, unless told otherwise
LONGEST = 64  # characters of one part of a name
TEXT = 4000  # characters of a text


class DataPoint(NamedTuple):
    """One number of a round: of the model (``metric``), of a watch, of a client, or a count over the ``round``.

    What is ``reported`` of a client has names with slashes of its own.
    """

    level: Literal["metric", "watch", "client", "round", "reported"]
    name: str
    value: float
    watch: str | None = None
    client: str | None = None

    @property
    def tag(self) -> str:
        """The name with slashes, as TensorBoard and MLflow group by.

        >>> DataPoint("watch", "score", 2.5, "gross", "7").tag, DataPoint("client", "weight", 0.1, client="a/b").tag
        ('watch/gross/score/7', 'client/weight/a:2Fb')
        """
        if self.level == "metric":
            whole = "/".join(["metric", *map(segment, self.name.split("/"))])
            return whole if len(whole) <= 2 * LONGEST else f"metric/{segment(self.name)}"
        if self.level == "reported":
            return "/".join(map(segment, ["client", *self.name.split("/", 1), str(self.client)]))
        parts = (self.level, self.watch, self.name, self.client)
        return "/".join(segment(part) for part in parts if part is not None)

    @property
    def family(self) -> str:
        """The name without who and what it is of, as OpenTelemetry and Prometheus group by."""
        if self.level == "reported":
            return "client.reported"
        return "metric" if self.level == "metric" else f"{self.level}.{self.name}"

    @property
    def labels(self) -> dict[str, str]:
        """The client, watch or run that it is of."""
        name = self.name if self.level in ("metric", "reported") else None
        found = {"metric": name, "watch": self.watch, "client": self.client}
        return {label: segment(value) for label, value in found.items() if value is not None}


def data_points(record: RoundRecord, clients: Clients = "all", most: int = MOST) -> list[DataPoint]:
    """The numbers of a round; what is not finite, such as the score of a rejected reply, is left out."""
    found = [*_data_points(record, chosen(record, clients, most))]
    return [point for point in found if math.isfinite(point.value)]


def chosen(record: RoundRecord, clients: Clients, most: int) -> list[str]:
    """The clients that are sent one by one: all, or only the flagged and excluded where there are more than ``most``.

    There are never more than ``most`` of them; the counts over the round are those of all clients in any case.
    """
    told = (client for values in record.reported.values() for client in values)
    everybody = [*dict.fromkeys((*record.client_ids, *record.excluded, *told))]
    if clients == "all" and len(everybody) <= most:
        return everybody
    flagged = [c for c, flag in zip(record.client_ids, record.flagged.tolist(), strict=True) if flag]
    return [*dict.fromkeys((*flagged, *record.excluded))][:most]


def refusals(record: RoundRecord) -> str:
    """The replies that were not let in and why, a line each; empty where all were."""
    return "\n".join(f"client {segment(r.client_id)}: {r.reason}" for r in record.rejected)[:TEXT]


@lru_cache(maxsize=4096)
def segment(text: str) -> str:
    """One part of a name in letters, digits and ``_.-``; everything else as ``:`` and hexadecimal digits.

    Clients choose their names: two of them never become one, none is a path, and long ones end in their hash.

    >>> segment("site_1"), segment("a b"), segment(".."), segment("")
    ('site_1', 'a:20b', ':2E:2E', ':')
    """
    raw = text.encode("utf-8", "surrogatepass")
    plain = quote(raw, safe="").replace("%", ":").replace("~", ":7E")
    if not plain.strip("."):
        return plain.replace(".", ":2E") or ":"
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 18]}::{sha256(raw).hexdigest()[:16]}"


def title(run: Run) -> str:
    """A run's name among those of all workspaces.

    >>> title(Run(3, "eight", 1.5, "done", "in-process", {}, {}, {}, 15))
    '3-eight-19700101T000001.500'
    """
    began = datetime.fromtimestamp(run.created, UTC)
    return f"{run.id}-{segment(run.name)}-{began:%Y%m%dT%H%M%S}.{began.microsecond // 1000:03d}"


def _data_points(record: RoundRecord, clients: list[str]) -> Iterator[DataPoint]:
    place = {c: i for i, c in reversed([*enumerate(record.client_ids)])}  # of two replies the first counts
    present = [(c, place[c]) for c in clients if c in place]
    excluded = set(record.excluded)
    for name, value in record.metrics.items():
        yield DataPoint("metric", name, value)
    for watch in record.watches:
        yield DataPoint("watch", "threshold", watch.threshold, watch.name)
        columns = {"signal": watch.signal, "score": watch.scores, "flagged": watch.flagged}
        for name, column in columns.items():
            values = column.tolist()
            yield from (DataPoint("watch", name, float(values[i]), watch.name, c) for c, i in present)
    columns = {"weight": record.weights, "examples": record.num_examples, "flagged": record.flagged}
    for name, column in columns.items():
        values = column.tolist()
        yield from (DataPoint("client", name, float(values[i]), client=c) for c, i in present)
    yield from (DataPoint("client", "excluded", float(c in excluded), client=c) for c in clients)
    for name, told in record.reported.items():
        if name in (ACROSS, UP):  # places on a map, which is turned from round to round
            continue
        yield from (DataPoint("reported", name, told[c], client=c) for c in clients if c in told)
    yield DataPoint("round", "flagged", float(record.flagged.sum()))
    yield DataPoint("round", "excluded", float(len(excluded)))
    yield DataPoint("round", "rejected", float(len(record.rejected)))
    yield DataPoint("round", "clients", float(len(record.client_ids)))
