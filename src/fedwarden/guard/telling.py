"""A judged round as lines for a server's log, and as numbers beside its metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ..core.types import RoundRecord


def lines(record: RoundRecord, known: Collection[str]) -> Iterator[str]:
    """Who is left out and why; ``known`` were out before this round."""
    for rejection in record.rejected:
        yield f"reply of client {rejection.client_id} rejected: {rejection.reason}"
    for client in sorted(set(record.excluded) - set(known)):
        names = [w.name for w in record.watches if w.flagged[record.client_ids.index(client)]]
        what = "suspended" if client in record.suspended else "excluded"
        yield f"client {client} is {what}, flagged by {', '.join(names) or 'no watch'}"
    for note in record.notes:
        yield str(note)


def tally(record: RoundRecord) -> dict[str, float]:
    """What the metrics of a round gain."""
    return {
        "fedwarden/replies": len(record.client_ids),
        "fedwarden/rejected": len(record.rejected),
        "fedwarden/flagged": int(record.flagged.sum()),
        "fedwarden/excluded": len(record.excluded),
        "fedwarden/combined": int((record.weights > 0).sum()),
    }
