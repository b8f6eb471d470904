"""Every notebook of the documentation runs and prints what is stored in it; none tells of the machine it ran on."""

import json
import re
from pathlib import Path

import notebooks
import pytest
import yaml

ROOT = Path(__file__).parents[1]
NAMES = notebooks.names()


@pytest.mark.parametrize("name", ["guard", *(pytest.param(n, marks=pytest.mark.slow) for n in NAMES if n != "guard")])
def test_a_notebook_prints_what_it_says(name):
    notebook = notebooks.load(name)
    now = notebooks.outputs(notebook, name)
    for i, (cell, found) in enumerate(zip(notebooks.code_cells(notebook), now, strict=True), 1):
        assert notebooks.told(found) == notebooks.told(cell["outputs"]), (
            f"{name}.ipynb, code cell {i} prints something else now; if that is right: python tools/notebooks.py {name}"
        )


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_as_the_tool_writes_it(name):
    notebook, text = notebooks.load(name), (notebooks.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    assert text == notebooks.stored(notebook, [cell["outputs"] for cell in notebooks.code_cells(notebook)])


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_it_tells_of_a_machine(name):
    notebook = notebooks.load(name)
    text, _ = notebooks.page(notebook, name)
    assert not re.search(r"(?<![\w.])/(?:home|root|tmp|work|Users|usr|var)/| at 0x[0-9a-f]+|\d{4}-\d\d-\d\d", text)
    assert notebook["metadata"] == notebooks.METADATA


def test_each_is_a_page_of_the_site():
    nav = json.dumps(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert all(f'"notebooks/{name}.md"' in nav for name in NAMES)


def cells(*sources):
    return {"cells": [{"cell_type": "code", "source": source, "outputs": []} for source in sources]}


def test_cells_share_their_names_and_show_their_last_value():
    found = notebooks.outputs(cells("a = 2\nprint('two')\na + 1", "a * 10;", "a * 10"), "mine")
    assert [notebooks.told(part) for part in found] == [["two\n", "text/plain", "3"], [], ["text/plain", "20"]]


def test_a_cell_that_fails_is_named():
    with pytest.raises(notebooks.CellError, match=r"mine.ipynb, code cell 2: ZeroDivisionError"):
        notebooks.outputs(cells("a = 0", "1 / a"), "mine")


def test_cells_run_in_an_empty_folder_that_is_left_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDWARDEN_HOME", "elsewhere")
    code = "import os\nfrom pathlib import Path\nPath('a').touch()\nos.listdir(), 'FEDWARDEN_HOME' in os.environ"
    assert notebooks.told(notebooks.outputs(cells(code), "mine")[0])[1] == "(['a'], False)"
    assert not list(tmp_path.iterdir())


def test_other_words_are_seen_and_other_last_digits_of_a_table_are_not():
    def table(text):
        return notebooks.told([{"output_type": "execute_result", "data": {"text/html": [text]}}])

    assert table("<td>5, limit 2.5, 11 MADs</td>") == table("<td>4, limit 2.6, 12 MADs</td>")
    assert table("<td>client 5</td>") != table("<td>client 6</td>")
