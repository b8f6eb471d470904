"""Alerts when a client is in doubt or excluded, or a run is stalled: by a webhook, a command or a function.

Where they go is read from the environment alone: a scenario is kept in the ledger, which may be passed on, and whoever
continues a run from it must not run a command or post to an address that it names.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from http.client import responses
from socket import SHUT_RDWR
from threading import Timer
from typing import Any, Literal, cast, get_args

import numpy as np

from ..core.errors import ConfigError, one_of
from ..core.registry import register
from ..core.types import RoundRecord
from ..core.words import count, printable
from ..store.ledger import Run
from ..store.round import OUT, RoundStory, advice
from .data_points import DataPoint

Kind = Literal["flagged", "in doubt", "suspended", "excluded", "let in", "silent", "promise", "stalled", "ended"]
Form = Literal["chat", "pager", "json"]
KINDS: tuple[Kind, ...] = get_args(Kind)
USUAL: tuple[Kind, ...] = ("in doubt", "suspended", "excluded", "let in", "promise", "stalled", "ended")
UNSURE = "too_few"  # the note that the guard judges no client
LONG, SLOWER = 600.0, 10.0  # a round is late after so many seconds, and so many times the longest one
ADDRESS, KEY, COMMAND = "FEDWARDEN_WEBHOOK", "FEDWARDEN_PAGER_KEY", "FEDWARDEN_ALERT_COMMAND"
LINES = 20  # alerts that one message tells one by one
LIVELY = re.compile(r"(?<=@)|(?<=\])(?=\()|(?<=:)(?=//)|(?<=\w\.)(?=[^\W\d])")
MARKS = re.compile(r"[*~]|(?<![^\W_])_|_(?![^\W_])")  # what makes text bold or struck out; node_1 is a name
NOTHING = np.zeros(0)
WORDS: Mapping[Kind, str] = {"let in": "is no longer suspended", "silent": "does not answer any more"}


@dataclass(frozen=True)
class Alert:
    """The message about a client in a round of a run, with ``advice`` that helps until the run is done."""

    kind: Kind
    run: str
    round: int
    client: str
    words: str
    advice: str = ""

    def __str__(self) -> str:
        return printable(f"{self.run}, round {self.round}: {self.words} {self.advice}".rstrip())


def alerts(
    record: RoundRecord,
    run: str,
    before: RoundRecord | None,
    kinds: Collection[str] = USUAL,
    known: Collection[str] = (),
    number: int | None = None,
) -> list[Alert]:
    """What is new in a round compared with the one before it; ``known`` are clients whose doubt was told earlier.
    ``number`` is the run's, for the command that an alert names.

    Where the round before is not known (None), clients that are out and flagged in this round are told, perhaps again.
    A round is stalled if its model has no client's update. What the guard promises of false exclusions ends with the
    honest majority: an alert says so once half of the clients are out, or too few clients are in good standing.
    """
    now, was = RoundStory(record), None if before is None else RoundStory(before)
    out = {c: state for c, state in now.states.items() if state in OUT}
    left = {} if was is None else {c: state for c, state in was.states.items() if state in OUT}
    found: list[tuple[Kind, str]] = []
    for state in OUT:
        new = now.flagged if was is None else {c for c in out if left.get(c) != state}
        found += [(cast(Kind, state), c) for c in sorted(new) if out.get(c) == state]
    found += [("let in", c) for c in sorted(left.keys() - out.keys())]
    found += [("silent", c) for c in sorted(_silent(record) - (set() if before is None else _silent(before)))]
    told = {client for _, client in found}
    found += [("in doubt", c) for c in sorted(now.in_doubt.keys() - told - set(known) - out.keys())]
    found += [("flagged", c) for c in record.client_ids if c in now.flagged - told - now.in_doubt.keys() - out.keys()]
    made = [Alert(kind, run, record.round, client, *_words(now, kind, client, number)) for kind, client in found]
    if len(record.client_ids) and not (record.weights > 0).any():
        made.append(Alert("stalled", run, record.round, "", "no update is in the model, which stays as it was"))
    if (spent := _spent(record)) and (before is None or not _spent(before)):
        made.append(Alert("promise", run, record.round, "", spent))
    return [alert for alert in made if alert.kind in kinds]


def message(found: Sequence[Alert]) -> str:
    """Alerts in one text.

    >>> print(message([Alert("ended", "run 1", 3, "", f"reason {i}") for i in range(21)]).splitlines()[-1])
    and 1 alert more
    """
    more = [f"and {count(len(found) - LINES, 'alert')} more"] if len(found) > LINES else []
    return "\n".join([*map(str, found[:LINES]), *more])


def for_chat(text: str) -> str:
    """A text in which a chat finds no mention, link or markup of somebody else's making.

    Slack, Teams and Mattermost take ``&``, ``<`` and ``>`` as entities; a space without a width takes links apart, and
    marks of formatting become wide ones.

    >>> for_chat("<!channel> [a](http://b.c) @here, *node_1*").replace("\u200b", "|")
    '&lt;!channel&gt; [a]|(http:|//b.|c) @|here, ＊node_1＊'
    """
    plain = MARKS.sub(lambda mark: chr(ord(mark[0]) + 0xFEE0), text)
    return LIVELY.sub("\u200b", plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


@dataclass(frozen=True, kw_only=True)
class Alerting:
    """A sink that takes alerts in place of rounds: those of some ``kinds``.

    At most one message goes out in ``every`` seconds; what comes in between goes together. A run stalls if it takes
    more than ``patience`` seconds for a round; by default ten minutes and ten times its longest round so far.
    """

    kinds: Sequence[Kind] = USUAL
    every: float = 10.0
    patience: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.kinds, str) or not set(self.kinds) <= set(KINDS) or self.every < 0:
            got = f"got {self.kinds} and {self.every}"
            raise ConfigError(f"kinds are some of {', '.join(KINDS)}, and every is at least 0; {got}")
        if self.patience is not None and not self.patience > 0:
            raise ConfigError(f"patience is a number of seconds above 0, or left out; got {self.patience}")

    def __call__(self, run: Run) -> Notices:
        return Notices(run, self)

    def target(self) -> Any:
        """Where they go; it raises where that is not known."""

    def deliver(self, found: Sequence[Alert]) -> None:
        """They have arrived when this returns; it raises where they have not."""
        raise NotImplementedError


class Unmoved(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which would turn what is posted into a request for a page, at an address nobody gave."""

    def redirect_request(self, *given: Any) -> None:
        return None


class Impatient(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Ends what takes longer than its timeout in all, since a byte now and then keeps a socket from timing out."""

    def do_open(self, http_class: Any, req: Any, **options: Any) -> Any:
        def connection(*args: Any, **more: Any) -> Any:
            made = http_class(*args, **more)
            clock.function = lambda: made.sock and made.sock.shutdown(SHUT_RDWR)
            return made

        clock = Timer(req.timeout, lambda: None)
        clock.start()
        try:
            return super().do_open(connection, req, **options)
        finally:
            clock.cancel()


@register("sink", "webhook")
@dataclass(frozen=True)
class Webhook(Alerting):
    """Posts alerts to the address in FEDWARDEN_WEBHOOK: a chat's, a pager's, or one that takes JSON.

    ``form`` is "chat" (a text), "pager" (an event, with the key in FEDWARDEN_PAGER_KEY) or "json" (all that is known).
    """

    form: Form = "chat"
    timeout: float = 5.0

    def __post_init__(self) -> None:
        one_of("form", self.form, Form)
        super().__post_init__()

    def target(self) -> tuple[str, str]:
        """The address, and the key of a pager."""
        address = _from_environment(ADDRESS, "the sink 'webhook' posts to the address")
        if not address.startswith(("https://", "http://")):
            raise ConfigError(f"{ADDRESS} is to be an address that begins with https:// or http://")
        return address, _from_environment(KEY, "a pager is called with the key") if self.form == "pager" else ""

    def deliver(self, found: Sequence[Alert]) -> None:
        address, key = self.target()
        body = json.dumps(_body(found, self.form, key)).encode()
        try:
            asked = urllib.request.Request(address, body, {"Content-Type": "application/json"})
            urllib.request.build_opener(Unmoved, Impatient).open(asked, timeout=self.timeout).close()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"the address answered {error.code} {responses.get(error.code, '')}".strip()) from None
        except Exception as error:
            raise RuntimeError(f"the address cannot be reached: {_cause(error)}") from None


@register("sink", "command")
@dataclass(frozen=True)
class Command(Alerting):
    """Runs the command in FEDWARDEN_ALERT_COMMAND, without a shell, with the alerts as JSON on standard input."""

    timeout: float = 30.0

    def target(self) -> list[str]:
        """The words of the command."""
        return shlex.split(_from_environment(COMMAND, "the sink 'command' runs the command"))

    def deliver(self, found: Sequence[Alert]) -> None:
        words, body = self.target(), json.dumps(_body(found, "json", ""))
        try:
            none = subprocess.DEVNULL
            done = subprocess.run(words, input=body, text=True, timeout=self.timeout, stdout=none, stderr=none)
        except Exception as error:
            raise RuntimeError(f"the command cannot be run: {_cause(error)}") from None
        if done.returncode:
            raise RuntimeError(f"the command ended with {done.returncode}")


@dataclass(frozen=True)
class Call(Alerting):
    """Calls a function of one's own with a list of alerts, in a thread of its own: ``sinks=[Call(print)]``."""

    function: Callable[[Sequence[Alert]], object]
    every: float = field(default=0.0, kw_only=True)

    def deliver(self, found: Sequence[Alert]) -> None:
        self.function(found)


class Notices:
    """What is new in the rounds of a run, as alerts; written to, it delivers them at once."""

    def __init__(self, run: Run, sink: Alerting, last: int | None = None) -> None:
        """``last`` is the round after which there is something new: by default the one before the newest."""
        self.sink, self.name, self.number = sink, f"run {run.id} ({run.name})", run.id
        self.last = max(0, run.rounds - 1) if last is None else last
        self.moved, self.longest, self.late = time.monotonic(), 0.0, False  # since when, and how long rounds took
        self.before = None if self.last else RoundRecord(0, (), NOTHING, NOTHING)
        self.doubted: set[str] = set()  # clients whose doubt was told

    def write(self, record: RoundRecord, points: Sequence[DataPoint] = ()) -> None:
        if found := self.of(record):
            self.sink.deliver(found)

    def close(self, state: str) -> None:
        pass

    def of(self, record: RoundRecord) -> list[Alert]:
        """What is new in the next round."""
        found = alerts(record, self.name, self.before, self.sink.kinds, self.doubted, self.number)
        self.doubted |= RoundStory(record).in_doubt.keys()
        now = time.monotonic()
        self.longest, self.moved, self.late = max(self.longest, now - self.moved), now, False
        self.before, self.last = record, record.round
        return found

    def by_the_clock(self) -> list[Alert]:
        """That a round does not come, once."""
        most = max(LONG, SLOWER * self.longest) if self.sink.patience is None else self.sink.patience
        waited = time.monotonic() - self.moved
        if waited <= most or self.late or "stalled" not in self.sink.kinds:
            return []
        self.late = True
        return [Alert("stalled", self.name, self.last, "", f"no round has been finished for {waited:.0f} s")]

    def at_the_end(self, state: str) -> list[Alert]:
        """That the run came to no good end."""
        how = {"failed": "failed", "interrupted": "was interrupted"}.get(state)
        told = how and "ended" in self.sink.kinds
        return [Alert("ended", self.name, self.last, "", f"the run {how}")] if told else []


def _silent(record: RoundRecord) -> set[str]:
    return {rejection.client_id for rejection in record.rejected if rejection.reason.kind == "no_answer"}


def _spent(record: RoundRecord) -> str:
    """Why false exclusions are not bounded any more, in words; empty where they are."""
    everybody, out = {*record.client_ids, *record.excluded}, len(record.excluded)
    if out and 2 * out >= len(everybody):
        head = f"{out} of {len(everybody)} clients are excluded or suspended"
        return f"{head}: without an honest majority nothing bounds false exclusions"
    return next((str(note) for note in record.notes if note.kind == UNSURE), "")


def _words(now: RoundStory, kind: Kind, client: str, number: int | None) -> tuple[str, str]:
    """An alert about a client: the sentence that tells of it everywhere; and what to do."""
    if kind in WORDS:
        return f"Client {client} {WORDS[kind]}.", ""
    note = now.doubts.get(client)
    return str(now.reason(client)), advice(client, note, number) if note else ""


def _body(found: Sequence[Alert], form: Form, key: str) -> dict[str, Any]:
    if form == "chat":
        return {"text": for_chat(message(found))}
    if form == "json":
        return {"text": message(found), "alerts": [asdict(alert) for alert in found]}
    summary = {"summary": message(found)[:1024], "source": "fedwarden", "severity": "warning"}
    return {"routing_key": key, "event_action": "trigger", "payload": summary}


def _cause(error: BaseException) -> str:
    """Why nothing was delivered, without the error's own words: an address or a command in them is a secret.

    >>> _cause(urllib.error.URLError(ConnectionRefusedError(111, "Connection refused"))), _cause(TimeoutError())
    ('connection refused', 'no answer in time')
    """
    cause = getattr(error, "reason", None)
    cause = cause if isinstance(cause, Exception) else error
    if isinstance(cause, TimeoutError | subprocess.TimeoutExpired):
        return "no answer in time"
    words = getattr(cause, "reason", None) or getattr(cause, "strerror", None) or type(cause).__name__
    return re.sub(r"_|(?<=[a-z])(?=[A-Z])", " ", str(words)).lower()


def _from_environment(name: str, what: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value:
        raise ConfigError(f"{what} in the environment variable {name}, which is not set; set it, or leave the sink out")
    return value
