"""Names to factories: one file extends, and an error names the nearest."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import numpy as np
import pytest

import fedwarden as fw
from fedwarden import rules
from fedwarden.aggregators import TrimmedMean
from fedwarden.core import registry
from fedwarden.core.errors import ConfigError
from fedwarden.core.protocols import COMPLETE
from fedwarden.core.registry import FOLDERS, component, describe, lookup, make, names, register


@pytest.fixture
def entries(monkeypatch):
    """A registry of one's own: what a test registers is forgotten."""
    for kind in registry.FOLDERS:
        names(kind)
    copy = {kind: dict(table) for kind, table in registry._entries.items()}
    monkeypatch.setattr(registry, "_entries", copy)
    monkeypatch.setattr(registry, "_exempt", dict(registry._exempt))
    yield copy
    forget()


def forget():
    """Look for everything again."""
    for found in (registry._discover, registry._folder, registry._plugins):
        found.cache_clear()


@dataclass(frozen=True)
class Fixed:
    """Flags above a number.

    And this line is not part of the summary.
    """

    limit: float = 1.0

    def __post_init__(self):
        if self.limit < 0:
            raise ValueError(f"limit is not negative; got {self.limit}")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: names("rul"), "no kind 'rul'; did you mean 'rule'"),
        (lambda: register("signl", "x"), "no kind 'signl'; did you mean 'signal'"),
        (lambda: make("rule", "robust"), "no rule 'robust'; did you mean 'robust_z'"),
        (lambda: lookup("history", "???"), r"no history '\?\?\?'; known: .*cusum, .*ewma, .*pid, .*raw"),
        (lambda: make("rule", "robust_z", limt=6.0), "rule 'robust_z' has no option 'limt'; did you mean 'limit'"),
        (lambda: make("rule", "gesd", alpha=2.0), r"rule 'gesd': alpha lies in \(0, 1\); got 2.0"),
        (lambda: component("rule", {"limit": 3.0}), "a name or a table with a 'name'"),
        (lambda: component("rule", {"name": 3}), "a name or a table with a 'name'"),
        (lambda: fw.aggregate("medain", [[1.0]]), "no aggregator 'medain'; did you mean 'median'"),
    ],
)
def test_an_unknown_thing_names_the_nearest(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_one_decorator_extends(entries):
    assert register("rule", "fixed")(Fixed) is Fixed
    assert "fixed" in names("rule")
    assert make("rule", "fixed", limit=2.0) == Fixed(2.0)
    assert fw.Watch("centroid_distance", rule={"name": "fixed", "limit": 3.0}).rule == Fixed(3.0)
    with pytest.raises(ConfigError, match="rule 'fixed': limit is not negative; got -1"):
        make("rule", "fixed", limit=-1)


def test_a_second_factory_of_the_same_name_is_refused(entries):
    register("rule", "fixed")(Fixed)
    register("rule", "fixed")(Fixed)  # the same one again, as a reload does

    def fixed():
        return None

    with pytest.raises(ConfigError, match=r"rule 'fixed' is already registered by .*; choose another name"):
        register("rule", "fixed")(fixed)
    assert lookup("rule", "fixed") is Fixed


def test_a_file_dropped_into_the_folder_is_found(entries, tmp_path, monkeypatch):
    (tmp_path / "dropped.py").write_text(
        "from fedwarden.core.registry import register\n\n"
        '@register("rule", "dropped")\ndef dropped(limit: float = 1.0):\n    """Dropped."""\n    return limit\n'
    )
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "fedwarden.rules.dropped", raising=False)
    forget()
    try:
        assert "dropped" in names("rule")
        assert make("rule", "dropped", limit=4.0) == 4.0
    finally:
        sys.modules.pop("fedwarden.rules.dropped", None)
        vars(rules).pop("dropped", None)


@pytest.fixture
def install(entries, tmp_path, monkeypatch):
    """Install a distribution with one module and an entry point for it, as pip would."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def installed(module, text):
        info = tmp_path / f"{module}_dist-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}-dist\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[fedwarden]\n{module} = {module}\n")
        (tmp_path / f"{module}.py").write_text(text)
        monkeypatch.delitem(sys.modules, module, raising=False)
        forget()

    return installed


SOUND = """
from fedwarden.core.registry import register

@register("rule", "sound-rule")
def sound():
    \"\"\"Sound.\"\"\"
"""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import not_installed_at_all", "ModuleNotFoundError: No module named 'not_installed_at_all'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ('raise RuntimeError("two\\nlines \\x1b[2J")', r"RuntimeError: two lines \x1b[2J"),
        (SOUND.replace("sound-rule", "gesd"), "ConfigError: rule 'gesd' is already registered by fedwarden.rules.gesd"),
    ],
)
def test_a_broken_plugin_is_named_in_one_line_and_the_rest_goes_on(install, caplog, text, error):
    install("broken_plugin", text)
    install("sound_plugin", SOUND)
    assert "sound_rule" in names("rule")
    assert make("rule", "gesd") == fw.GESD()
    for kind in registry.FOLDERS:
        assert names(kind)
    (told,) = caplog.messages
    assert told.startswith(
        f"warning: the plug-in 'broken_plugin' of broken_plugin-dist 1.2 cannot be imported ({error}"
    )
    assert told.endswith("; everything else goes on without it")
    assert "\n" not in told
    with pytest.raises(ConfigError) as caught:
        lookup("rule", "from_the_plugin")
    assert "there is no rule 'from_the_plugin'; known:" in str(caught.value)
    assert "the plug-in 'broken_plugin' of broken_plugin-dist 1.2 cannot be imported" in str(caught.value)


@pytest.mark.parametrize("name", ["pid_made", "pid-made"])
def test_a_hyphen_is_an_underscore(name):
    assert [watch.name for watch in fw.Warden.preset(name).watches] == ["centroid_distance"]
    assert [watch.name for watch in make("preset", name, k=3.0).watches] == ["centroid_distance"]
    assert "pid_made" in names("preset")
    assert "pid-made" not in names("preset")
    assert component("aggregator", {"name": "trimmed-mean", "b": 2}) == TrimmedMean(2)


@pytest.mark.parametrize("kind", ["aggregator", "history", "policy", "rule", "signal"])
def test_every_component_of_a_round_is_public(kind):
    for name in names(kind):
        factory = lookup(kind, name)
        if factory.__module__.startswith("fedwarden."):
            assert getattr(import_module(FOLDERS[kind]), factory.__name__) is factory


def test_component_takes_a_name_a_table_or_a_thing():
    table = {"name": "gesd", "alpha": 0.2}
    assert component("rule", "gesd") == fw.GESD()
    assert component("rule", table) == fw.GESD(0.2)
    assert table == {"name": "gesd", "alpha": 0.2}
    thing = object()
    assert component("rule", thing) is thing


@pytest.mark.parametrize("kind", ["aggregator", "history", "policy", "rule", "signal"])
def test_describe_is_what_component_builds_from(kind):
    for name in names(kind):
        table = describe(make(kind, name))
        assert (table.pop("kind"), table["name"]) == (kind, name)
        assert component(kind, table) == make(kind, name)
    assert describe(fw.PID(ki=0.25))["ki"] == 0.25
    assert describe(Fixed()) == {"kind": "custom", "name": "Fixed"}


class Bare:
    """Declares nothing."""

    def __call__(self, cohort):
        return self.measured(cohort)

    def measured(self, cohort):
        return np.zeros(len(cohort))


def plain(cohort):
    return np.zeros(len(cohort))


@pytest.mark.parametrize("signal", [Bare(), plain, partial(plain), Bare().measured, lambda cohort: plain(cohort)])
def test_a_signal_that_declares_nothing_has_the_defaults_of_its_kind(signal):
    made = component("signal", signal)
    assert (made.words, made.weights_only, made.spread, made.pairs) == ("", False, False, False)
    assert made.server is not None
    assert made.equip(fw.Server()) is made
    warden = fw.Warden([fw.Watch(signal, name="plain")]).equip(fw.Server())
    record = warden.step(fw.Cohort(1, "abc", fw.Updates.of(np.eye(3)), np.ones(3))).record
    assert (record.watches[0].words, record.reported) == ("plain", {})


def test_what_a_function_declares_counts():
    def far(cohort):
        return plain(cohort)

    far.weights_only = far.pairs = True
    made = component("signal", far)
    assert made is far
    assert (made.weights_only, made.pairs, made.spread) == (True, True, False)
    record = fw.Warden([fw.Watch(far)]).step(fw.Cohort(1, "abc", fw.Updates.of(np.eye(3)), np.ones(3))).record
    assert set(record.reported) == {"update/cosine", "map/x", "map/y"}


def test_every_component_of_ours_has_what_its_kind_may_declare():
    for kind, protocol in COMPLETE.items():
        declared = {name for name in vars(protocol) if name[0] != "_"}
        for name in names(kind):
            if lookup(kind, name).__module__.startswith("fedwarden."):
                assert declared <= set(dir(lookup(kind, name))), name
