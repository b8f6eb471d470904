"""The rules that only comparisons use, against the loops written from their papers and the laws of every rule."""

from __future__ import annotations

import pytest

import newer_loops
from fedwarden.conformance import check
from fedwarden.conformance.law import examine
from fedwarden.conformance.laws import LAWS
from fedwarden.conformance.subject import Subject, registered
from fedwarden.core.registry import exemptions


@pytest.mark.parametrize("name", newer_loops.RULES)
def test_a_newer_rule_keeps_the_laws_of_its_kind(name, one_thread):
    report = check("aggregator", name, **newer_loops.RULES[name].options)
    assert not report.broken
    assert report.excused == {**exemptions("aggregator", name)}


@pytest.mark.parametrize("name", newer_loops.RULES)
def test_a_newer_rule_is_its_paper_and_keeps_the_laws(name, one_thread):
    rule = newer_loops.RULES[name]
    subject = Subject(registered(name), rule, name, rule.options, registered=True)
    found = {law.name: examine(subject, law, exemptions("aggregator", name)) for law in LAWS}
    assert not {law: f for law, f in found.items() if f.status == "broken"}
