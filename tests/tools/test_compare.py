"""Two runs of the benchmarks: what is worse is named, and the floors all read the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def written(path, ratio, times_ours, title="Time of a guarded round, 2 threads"):
    header = ["n", "guard", "floor, ms", "median ratio", "Flower, times ours", "bar"]
    row = ["20", "auto", "5.0", f"{ratio:.2f}", f"{times_ours:.2f} (1.00)", "at most 4.5: met"]
    path.write_text(json.dumps({"title": title, "machine": "", "header": header, "rows": [row]}) + "\n")
    return path


def compared(*arguments):
    command = [sys.executable, str(BENCHMARKS / "compare.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("ratio", "times_ours", "code", "says"),
    [
        (4.0, 20.0, 0, "0 worse"),
        (4.4, 20.0, 0, "0 worse"),
        (5.0, 20.0, 1, "20, auto | median ratio | 4 | 5 | +25% **worse**"),
        (3.0, 20.0, 0, "4 | 3 | -25% better"),
        (4.0, 10.0, 1, "Flower, times ours | 20 | 10 | +100% **worse**"),
    ],
)
def test_a_figure_that_is_worse_is_named(tmp_path, ratio, times_ours, code, says):
    before, after = written(tmp_path / "a", 4.0, 20.0), written(tmp_path / "b", ratio, times_ours)
    found, told = compared(before, after)
    assert (found, says in told) == (code, True), told
    assert "floor, ms" not in told
    assert "floor, ms" in compared(before, after, "--times")[1]


def test_files_that_have_nothing_in_common_are_no_comparison(tmp_path):
    found, told = compared(written(tmp_path / "a", 4.0, 1.0), written(tmp_path / "b", 4.0, 1.0, "another"))
    assert found == 1
    assert "no figure in common" in told
