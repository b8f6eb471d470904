"""What is noticed in a round, as data, and the one place where it becomes a sentence.

Whatever a guard, a server or a sink has to say is a :class:`Note`: what it is, which clients it is about, and the
numbers and names that belong to it. The ledger keeps it as such, and no code reads a sentence to learn what it means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .words import listed

Value = bool | int | float | str | tuple[Any, ...]


@dataclass(frozen=True)
class Note:
    """One thing that was noticed; ``str(note)`` is its sentence.

    ``kind`` is a key of :data:`SENTENCES`, ``values`` are numbers and names, and ``cause`` is another note that this
    one tells more of. A component's own words are of the kind ``text``.

    >>> note = Note.of("count_clipped", "g", claimed=1e9, counted=1000.0)
    >>> print(note)
    client g: claims 1e+09 examples, counted as 1000
    >>> note.clients, note.values["counted"]
    (('g',), 1000.0)
    """

    kind: str
    clients: tuple[str, ...] = ()
    values: Mapping[str, Value] = field(default_factory=dict, hash=False)
    cause: Note | None = None

    @classmethod
    def of(cls, kind: str, /, *clients: str, cause: Note | None = None, **values: Value) -> Note:
        """The same, written in one line."""
        return cls(kind, clients, values, cause)

    @classmethod
    def text(cls, words: str) -> Note:
        """A component's own words, or a sentence from a ledger that has no more.

        >>> str(Note.text("too few rounds"))
        'too few rounds'
        """
        return cls.of("text", text=words)

    @property
    def topic(self) -> Note:
        """The note without its numbers and details: of notes with the same topic a reader is shown the first.

        >>> first, later = (Note.of("no_usable_reply", rejected=n) for n in (3, 5))
        >>> first == later, first.topic == later.topic
        (False, True)
        """
        names = {k: v for k, v in self.values.items() if not isinstance(v, int | float) and k not in DETAILS}
        return replace(self, values=names, cause=self.cause and self.cause.topic)

    def table(self) -> dict[str, Any]:
        """The note as JSON can hold it."""
        found = {"kind": self.kind, "clients": list(self.clients), "values": dict(self.values)}
        return found if self.cause is None else {**found, "cause": self.cause.table()}

    def __str__(self) -> str:
        return sentence(self)


def sentence(note: Note) -> str:
    """A note in words. One that this version has no sentence for, or that lacks a value, is spelled out.

    >>> sentence(Note.of("idle")), sentence(Note.of("of another version", "a", height=2))
    ('idle: it returned the model unchanged', 'of another version: client a, height 2')
    """
    who = f"client{'s' * (len(note.clients) > 1)} {listed(note.clients)}" if note.clients else ""
    template = SENTENCES.get(note.kind)
    try:
        if isinstance(template, str):
            s = "" if note.values.get("many") == 1 else "s"
            return template.format_map({**note.values, "clients": who, "cause": note.cause, "s": s})
        if template is not None:
            return template(**note.values)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        pass  # a ledger may come from anywhere
    told = [who, *(f"{name} {value}" for name, value in note.values.items()), str(note.cause or "")]
    return ": ".join(filter(None, [note.kind, ", ".join(filter(None, told))]))


def _quoted(names: Sequence[str], many: int) -> str:
    """The first names of many.

    >>> _quoted(["a", "b"], 2), _quoted(["a", "b", "c"], 5)
    ("'a', 'b'", "'a', 'b', 'c' and 2 more")
    """
    more = f" and {many - len(names)} more" if many > len(names) else ""
    return ", ".join(f"'{name}'" for name in names) + more


def _attributes(names: Sequence[str]) -> str:
    """Attributes of an object in a sentence.

    >>> _attributes(["m"]), _attributes(["m", "strategy.n"])
    ("attribute 'm'", "attributes 'm' and 'strategy.n'")
    """
    return f"attribute{'s' if len(names) > 1 else ''} {listed([repr(name) for name in names])}"


MASKING = (
    "mean + {k:.3g} sigma can flag at most {most} of {n} clients at once, however far out they lie: {hidden} or more "
    "equal outliers mask each other (limit 1/(1+k^2) = {percent:.1f} %)"
)
DOUBTS: Mapping[str, Literal["skipped", "on trial"]] = {"left_out": "skipped", "on_trial": "on trial"}
"""What a client in doubt is in a round, by the kind of its note."""
DETAILS = ("layer", "teaches", "unlearns", "picture")  # what differs in one round
CARRIED = "a checkpoint carries numbers, texts, arrays, and lists and dicts of them, and no other objects"
KEPT = "the model is kept"
GROUPS_PROVE = "no likely coalition of others explains how often its groups were left out"

SENTENCES: Mapping[str, str | Callable[..., str]] = {
    "text": "{text}",
    # why a reply is rejected
    "answered_twice": "answered more than once; the first reply counts",
    "count_not_positive": "claims {count:g} examples; expected a positive number",
    "count_out_of_range": "claims {count:g} examples; expected {least:g} to {most:g}",
    "idle": "idle: it returned the model unchanged",
    "layer_count": "sent {sent} layers; expected {expected}",
    "layer_dtype": "layer {layer} has dtype {dtype}; expected {expected} or another {family} type",
    "layer_layout": "layer {layer} has the layout {layout}; expected a dense array",
    "layer_shape": "layer {layer} has shape {shape}; expected {expected}",
    "layers_unreadable": "layers cannot be read as arrays ({error}); expected {expected} arrays",
    "name_length": "its name has {length} characters; expected 1 to {most}",
    "unknown_client": "unknown client; {known} clients are known",
    "update_not_finite": (
        "its update holds NaN, Inf or numbers too large; expected finite values and a norm of at most {most:g}"
    ),
    "update_too_long": (
        "its update is {times:.3g} times as long as the median one; at most {most:g} times is accepted"
    ),
    "adapter_rank": "array {array!r} has rank {rank}; expected 1 to {most}",
    # why an update is rejected by column shards
    "update_dtype": "its update has dtype {dtype}; expected {expected}",
    "update_gone": "its update was already used, and no copy of it is kept",
    "update_shape": "its update has shape {shape}; expected {expected}",
    "update_unreadable": "its update cannot be read ({error}: {words}); expected an array, or a .npy file of one",
    # why a reply to Flower's server is rejected
    "array": "array {array!r} {cause}",
    "array_bytes": "holds {held} bytes; its shape {shape} needs {needed}",
    "array_dimensions": "has {sent} dimensions; expected at most {most}",
    "array_dtype": "has dtype {dtype}; expected {expected} type",
    "array_impossible": "has shape {shape}, which no array can have",
    "array_not_numpy": "cannot be read as a NumPy array",
    "array_not_real": "cannot be read as a NumPy array of real numbers",
    "array_out_of_range": "holds {value}; the model's {dtype} goes from {least} to {most}",
    "array_records": "sent {sent} array records; expected one",
    "array_serialised": "is serialised as '{sent}'; expected '{expected}'",
    "array_shape": "has shape {shape}; expected {expected}",
    "array_too_large": "holds {value:g}, too large for the model's {dtype}",
    "array_variance": "has a negative variance ({lowest:g}); expected at least 0",
    "arrays_missing": lambda names, many, arrays: (
        f"sent no array {_quoted(names, many)}; the model has {arrays} arrays"
    ),
    "arrays_unknown": lambda names, many: f"sent an array {_quoted(names, many)} that the model does not have",
    "failed": "failed: {error}",
    "array_no_scale": "has dtype int8 and no scale; expected a floating type, or an array {scale!r} beside it",
    "scaled_dtype": "has dtype {dtype} and a scale; expected int8",
    "scale_shape": "has {sent} scales; expected one floating-point number, or one for each of {rows} rows",
    "scale_value": "has a scale of {value:g}; expected finite numbers above 0",
    "metric_not_finite": "its metric '{metric}' is not a finite number",
    "metric_records": "sent {sent} metric records; expected one",
    "named_otherwise": lambda names, many: (
        f"its records or metrics have other names than those of most clients; expected metrics {_quoted(names, many)}"
    ),
    "model_gone": "came after its timeout, when the model that it started from was no longer kept; raise the timeout",
    "no_answer": "did not answer in time",
    "not_asked": "answered without being asked, in the name of node {node}",
    "other_name": "answered the message to node {asked} in the name of node {node}",
    "rejected": "{clients} rejected: {cause}",
    "sent_nothing": "sent nothing",
    "unpacked": "cannot be unpacked ({error}: {words})",
    "not_stored": "cannot be stored on the server's disk: {error}",
    "unreadable": "cannot be read ({error}: {words})",
    # why a site's model is rejected by an aggregator of NVIDIA FLARE
    "not_a_model": "sent {sent}; expected arrays by name",
    "adapters_scaled": "sent integers with scales; factors of adapters are sent as floats",
    "adapters_difference": "sent differences of factors; adapters are combined from whole models (FULL)",
    "params_type": "sent its parameters as {sent}; most sites sent {expected}",
    # what a guard notices in a round
    "aggregator_failed": f"the aggregator could not combine {{updates}} updates ({{error}}); {KEPT}",
    "all_excluded": f"all {{many}} clients are excluded; {KEPT}",
    "buffers_far": (
        "{clients}: its buffers (values that are not trained) lie far from the others', whose median is used"
    ),
    "copies_apart": "{clients} sent identical updates: each of them counts in full",
    "copies_as_one": "{clients} sent identical updates: they are judged as one",
    "copies_share": "{clients} sent identical updates: they share one vote",
    "count_clipped": "{clients}: claims {claimed:g} examples, counted as {counted:g}",
    "dtype_rounded": "{clients}: sent {sent}; converted to the model's {dtype}",
    "for_good": "{clients} was suspended and is now excluded for good",
    "few_report": lambda metric, told, clients_asked, names: (
        f"{told} of {clients_asked} clients report '{metric}'; no client is flagged for it unless most do; "
        f"metrics that most report: {_quoted(names, len(names)) or 'none'}"
    ),
    "probe_lacks": lambda names: (
        f"the labelled samples have none of the classes {listed(names)}: harm to these classes is not measured; "
        "reserve samples of all classes to see it"
    ),
    "groups_prove": f"{{clients}} is excluded: {GROUPS_PROVE}",
    "jurors_silent": (
        "{clients} reported no number '{metric}' from 0 to 1, which a juror sends with its update: "
        "see docs/how-to/jurors.md"
    ),
    "left_out": "{clients} was skipped in this round: {words}",
    "lone_weights": "in the update of {clients}, weights that the other clients hardly move are left out",
    "not_alike": (
        "the clients differ more than clients with data of one kind do, but guard.alike = true says that theirs are of "
        "one kind: honest clients may be left out of the model; remove alike unless you are sure of it"
    ),
    "on_trial": "{clients} is on trial, in the model in this round: {words}",
    "let_in": "{clients} is no longer suspended: enough rounds without a flag have passed",
    "masking": f"{MASKING}; the rule 'gesd' has no such limit below half of the clients",
    "masking_now": (
        f"{MASKING}; {{apart}} clients lie more than {{mads:.0f}} MADs above the median now; "
        "the rule 'gesd' has no such limit below half of the clients"
    ),
    "no_finite_output": "the new model gives no finite output; the last one is kept",
    "no_usable_reply": f"no usable reply ({{rejected}} rejected); {KEPT}",
    "suspended": "{clients} is suspended: still asked and measured, and let in again after a bounded number of rounds",
    "too_few": (
        "{many} different update{s} of clients that are not excluded: too few to judge any client; expected {quorum}"
    ),
    "trigger_removed": (
        "a backdoor was found and unlearned: a mark of {size:g} pixels turned {before:.0%} of the server's images into "
        "class {label}, and now turns {after:.0%}; the median class needs {usual:g} pixels"
    ),
    "variance_floored": "a variance of the new model was below 0; it is set to 0",
    "watch": "{watch}: {cause}",
    # what the operator said, in the round in which it takes effect
    "word_trusted": "{clients} is trusted ({by}: {reason})",
    "word_untrusted": "{clients} is no longer trusted by command ({by}: {reason})",
    "word_excluded": "{clients} is excluded until it is readmitted ({by}: {reason})",
    "word_readmitted": "{clients} is readmitted, and the evidence against it is cleared ({by}: {reason})",
    "word_suspended": "{clients} begins suspended ({by}: {reason})",
    "word_observing": "watches flag clients and leave none out ({by}: {reason})",
    "word_enforcing": "watches act again ({by}: {reason})",
    # what an engine notices
    "attack_failed": "attack {attack!r} was not carried out: {error}",
    "checkpoint_passed_over": "{fault}; continued from the one of round {round}",
    "converted": "{clients}: sent {sent} for {many} array{s}; the model has {model}: converted",
    "adapters_unknown": f"the guard does not know which adapters the sites started from; {KEPT}",
    "base_unknown": (
        "the guard does not know which model the sites started from: their median is used, and no site is judged"
    ),
    "evaluation": "evaluation of {cause}",
    "evaluation_left_out": "evaluation of {clients} left out: {cause}",
    "evaluations_failed": "the evaluations could not be combined: {error}",
    "guard_failed": f"the guard could not combine {{replies}} replies ({{error}}); {KEPT}",
    "metric_bounded": (
        "{clients}: its metric '{metric}' is {value:g}, far from the others', and counts as {counted:g}"
    ),
    "metrics_failed": "the metrics could not be combined: {error}",
    "model_not_finite": f"the strategy's model was not finite; {KEPT}",
    "name_missing": "{clients} sent no {key!r} in a metric or config record, the client_name: listed by node id",
    "name_taken": "{clients} calls itself {name!r}, which is another node's name or number: it is listed by its number",
    "new_not_finite": f"the new model was not finite; {KEPT}",
    "no_sum": "{clients}: the sum of their group failed and is lost for this round: {error}",
    "no_model": f"the strategy made no model of {{replies}} replies; {KEPT}",
    "nothing_to_measure": f"the model has no floating-point arrays, and nothing can be judged; {KEPT}",
    "state_changed": lambda names: (
        f"the strategy's {_attributes(names)} changed, and a resumed server starts with a fresh one; {CARRIED}"
    ),
    "state_fresh": lambda names: f"the strategy continues with a fresh {_attributes(names)}; {CARRIED}",
    "strategy_failed": f"the strategy could not combine {{replies}} replies ({{error}}); {KEPT}",
    "variance_negative": "array {array!r} of the new model had a negative variance ({lowest:g}); 0 is used",
}
"""The sentence of every kind: a function of the values, or a template over them and ``clients``, ``cause`` and ``s``,
which makes a plural of a word after the value ``many``."""
