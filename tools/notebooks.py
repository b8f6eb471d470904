"""Runs the notebooks in docs/notebooks, keeps what they print, and makes pages of the site from them.

    python tools/notebooks.py            # runs all of them and stores what they print now
    python tools/notebooks.py guard      # runs one

A notebook is JSON, so none of this needs Jupyter. Its cells run in one namespace, in order, in an empty folder.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType
from typing import Any

import torch

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
VARYING = re.compile(r"\d*\.\d+|\d+(?= MADs|, limit)")  # may differ from machine to machine

Notebook = dict[str, Any]
Output = dict[str, Any]


class CellError(Exception):
    """A cell that does not run."""


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def load(name: str) -> Notebook:
    found: Notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return found


def source(cell: Notebook) -> str:
    """The text of a cell, which is kept as one text or as lines.

    >>> source({"source": ["a = 1\\n", "a"]})
    'a = 1\\na'
    """
    text = cell["source"]
    return text if isinstance(text, str) else "".join(text)


def code_cells(notebook: Notebook) -> list[Notebook]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def split(code: str, where: str) -> tuple[CodeType, CodeType | None]:
    """The statements of a cell, and the expression at its end whose value is shown.

    >>> statements, shown = split("a = 1\\na + 1", "here")
    >>> names = {}
    >>> exec(statements, names)
    >>> eval(shown, names)
    2
    """
    tree = ast.parse(code)
    last = tree.body[-1] if tree.body else None
    shown = last.value if isinstance(last, ast.Expr) and not code.rstrip().endswith(";") else None
    if shown is not None:
        tree.body.pop()
    return compile(tree, where, "exec"), None if shown is None else compile(ast.Expression(shown), where, "eval")


def outputs(notebook: Notebook, name: str) -> list[list[Output]]:
    """What each code cell gives when all of them run now."""
    space: dict[str, Any] = {"__name__": "__main__"}
    with _clean_room():
        return [
            _run(source(cell), space, f"{name}.ipynb, code cell {i}") for i, cell in enumerate(code_cells(notebook), 1)
        ]


@contextlib.contextmanager
def _clean_room() -> Iterator[None]:
    """An empty folder, in which runs are recorded too, one thread, and pictures without a window."""
    before, threads = dict(os.environ), torch.get_num_threads()
    torch.set_num_threads(1)
    os.environ.pop("FEDWARDEN_HOME", None)
    os.environ["MPLBACKEND"] = "agg"
    try:
        with TemporaryDirectory() as folder, contextlib.chdir(folder):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        torch.set_num_threads(threads)


def _run(code: str, space: dict[str, Any], where: str) -> list[Output]:
    printed, shown = io.StringIO(), None
    try:
        statements, last = split(code, where)
        with contextlib.redirect_stdout(printed):
            exec(statements, space)
            shown = eval(last, space) if last else None
    except Exception as error:
        raise CellError(f"{where}: {type(error).__name__}: {error}") from error
    out: list[Output] = []
    if printed.getvalue():
        out.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
    if shown is not None:
        out.append({"data": _shown(shown), "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return out + [{"data": data, "metadata": {}, "output_type": "display_data"} for data in _pictures()]


def _shown(value: object) -> dict[str, Any]:
    """A value as a notebook shows it: as HTML where it has some, else as text."""
    if hasattr(value, "_repr_html_"):
        return {"text/html": lines(value._repr_html_()), "text/plain": [f"<{type(value).__name__}>"]}
    return {"text/plain": lines(repr(value))}


def _pictures() -> Iterator[dict[str, Any]]:
    """The figures of pyplot that a cell drew, each with its title in place of the picture for who cannot see it."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    for number in pyplot.get_fignums() if pyplot else ():
        figure, drawn = pyplot.figure(number), io.BytesIO()
        titles = [figure.get_suptitle(), *(axes.get_title(at) for axes in figure.axes for at in ("left", "center"))]
        figure.savefig(drawn, format="png", dpi=96, metadata={"Software": None})
        pyplot.close(figure)
        picture = base64.b64encode(drawn.getvalue()).decode("ascii")
        yield {"image/png": picture, "text/plain": ["; ".join(filter(None, titles))]}


def lines(text: str) -> list[str]:
    """A text as a notebook keeps it.

    >>> lines("a\\nb\\n")
    ['a\\n', 'b\\n']
    """
    return text.splitlines(keepends=True)


def told(found: Sequence[Output]) -> list[str]:
    """What the outputs of a cell say in words: print and text as they are, HTML without what varies, no pixels.

    >>> told([{"output_type": "stream", "name": "stdout", "text": ["1.5\\n"]}])
    ['1.5\\n']
    >>> told([{"output_type": "execute_result", "data": {"text/html": ["<b>1.5</b>"]}}])
    ['text/html', '<b>#</b>']
    """
    said: list[str] = []
    for output in found:
        if output["output_type"] == "stream":
            said.append("".join(output["text"]))
        for kind, data in sorted(output.get("data", {}).items()):
            text = "".join(data) if kind.startswith("text/") else ""
            said += [kind, VARYING.sub("#", text) if kind == "text/html" else text]
    return said


def stored(notebook: Notebook, found: Sequence[list[Output]]) -> str:
    """The file of a notebook with these outputs; nothing in it tells when, where or by whom it was run."""
    cells, left = [], iter(found)
    for i, cell in enumerate(notebook["cells"], 1):
        kept = {"cell_type": cell["cell_type"], "id": f"cell-{i}", "metadata": {}, "source": lines(source(cell))}
        if cell["cell_type"] == "code":
            kept |= {"execution_count": None, "outputs": next(left)}
        cells.append(kept)
    whole = {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def page(notebook: Notebook, name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by file name."""
    parts, pictures = [], dict[str, bytes]()
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append(source(cell))
            continue
        parts.append(f"``` {{.python .wrapped}}\n{source(cell)}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", ())})
            text = "".join(data.get("text/plain", ()))
            if "image/png" in data:
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(data["image/png"])
                parts.append(f"![{text}]({file})")
            elif "text/html" in data:
                parts.append("".join(data["text/html"]))
            else:
                parts.append(f"``` {{.text .wrapped}}\n{text.rstrip()}\n```")
    parts.append(
        f"This page is [a notebook]({name}.ipynb): save it and open it in Jupyter to change it and run it again."
    )
    return "\n\n".join(parts) + "\n", pictures


def main(chosen: Sequence[str]) -> None:
    for name in chosen or names():
        notebook = load(name)
        (FOLDER / f"{name}.ipynb").write_text(stored(notebook, outputs(notebook, name)), encoding="utf-8")
        print(f"{name}: stored")


if __name__ == "__main__":
    main(sys.argv[1:])
