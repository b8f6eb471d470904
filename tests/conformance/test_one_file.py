"""An extension is one file: it is checked by name, and a law that it breaks is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fedwarden
from fedwarden.conformance.__main__ import main

MINE = '''
"""A rule of one's own."""

from dataclasses import dataclass

import numpy as np

import fedwarden as fw


@fw.register("rule", "mine")
@dataclass(frozen=True)
class Mine:
    """Flag scores beyond k quartile distances above the upper quartile."""

    k: float = 3.0

    def __call__(self, scores, test):
        if not len(scores):
            return fw.Verdict(scores > 0, np.inf)
        low, high = np.quantile(scores, [0.25, 0.75])
        threshold = float(high + self.k * (high - low))
        return fw.Verdict(scores > threshold, threshold)
'''


def test_one_file_keeps_the_laws(tmp_path):
    (tmp_path / "my_rule.py").write_text(MINE)
    source = str(Path(fedwarden.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), source]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fedwarden.conformance", "rule", "mine", "--import", "my_rule"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("rule mine\n")
    assert " 0 broken, " in done.stdout.splitlines()[-1]


def test_a_broken_one_fails_with_the_laws_name(tmp_path, monkeypatch, capsys, forgetful):
    (tmp_path / "my_rule.py").write_text(MINE.replace("np.quantile(scores, ", "np.quantile(scores[:3], "))
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["rule", "mine", "--json", "--import", "my_rule"]) == 1
    (component,) = json.loads(capsys.readouterr().out)["components"]
    assert "permutation" in {finding["law"] for finding in component["laws"] if finding["status"] == "broken"}
