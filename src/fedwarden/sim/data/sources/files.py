"""Data sets of one's own: arrays (.npz), a table with named columns (.csv, .parquet), or folders of images."""

from __future__ import annotations

import csv as csv_files
import gzip
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from ....core.errors import nearest, require
from ....core.registry import register
from ..own import TEST, Table, dataset_of, held_back, whose
from . import Array, DataError, Dataset, column, find, locate

Columns = dict[str, list[str]]
ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".pgm", ".tif", ".tiff", ".webp"}
WORDS = 100  # different words in a column of categories, at most


@register("dataset", "npz")
def npz(
    file: str = "",
    features: str = "features",
    label: str = "labels",
    client: str | None = None,
    test: float | str = TEST,
    classes: int | None = None,
    numbers: bool = False,
    folder: str | None = None,
) -> Dataset:
    """Arrays of your own in one file: ``features``, ``labels`` and, where there are clients, ``clients``.

    Features are numbers (n, ...), taken as they are, or images of 8 bits, (n, height, width) or with their channels
    last. An array ``columns`` names the columns of features (n, d). ``test`` is a share of every client's rows, or
    another such file.
    """
    first = _npz(file, folder, features, label, client)
    if isinstance(test, str):
        second = _npz(test, folder, features, label, None)
        if first[0].shape[1:] != second[0].shape[1:]:
            shapes = f"{first[0].shape[1:]} and {second[0].shape[1:]}"
            raise DataError(f"{file}: expected samples of one shape here and in {test}; got {shapes}")
    else:
        second = (first[0][:0], first[1][:0], None, ())
    sizes = len(first[0]), len(second[0])
    owners = None if first[2] is None else np.concatenate([first[2].astype(str), np.full(sizes[1], "")])
    share = np.arange(sum(sizes)) >= sizes[0] if isinstance(test, str) else held_back(owners, sizes[0], test, file)
    x, labels = (np.concatenate(pair) for pair in zip(first[:2], second[:2], strict=True))
    places = np.concatenate([np.arange(size) for size in sizes])
    columns = {str(name): i for i, name in enumerate(first[3])}
    return dataset_of(Table(x, labels, owners, share, places, columns=columns), file, classes, numbers)


@register("dataset", "csv")
def csv(
    file: str = "",
    label: str = "label",
    client: str | None = None,
    drop: Sequence[str] = (),
    test: float | str = TEST,
    classes: int | None = None,
    numbers: bool = False,
    folder: str | None = None,
) -> Dataset:
    """A table of your own with a first line of names; ``label`` and ``client`` name columns, ``drop`` leaves some out.

    Values lie between commas, semicolons or tabs, and between the latter two numbers may have a decimal comma. Numbers
    are standardised by the training rows, words become one column each. ``test`` is a share of every client's rows, or
    another such file. A file whose name ends in ``.gz`` is unpacked.
    """
    parts = [_csv(name, folder) for name in (file, test) if isinstance(name, str)]
    return _table(parts, file, label, client, drop, test, classes, numbers)


@register("dataset", "parquet")
def parquet(
    file: str = "",
    label: str = "label",
    client: str | None = None,
    drop: Sequence[str] = (),
    test: float | str = TEST,
    classes: int | None = None,
    numbers: bool = False,
    folder: str | None = None,
) -> Dataset:
    """The same as ``csv`` from a Parquet file; needs pyarrow."""
    parts = [_parquet(name, folder) for name in (file, test) if isinstance(name, str)]
    return _table(parts, file, label, client, drop, test, classes, numbers)


def _named(file: str, folder: str | None, kind: str) -> Path:
    if not file:
        raise DataError(f'dataset {kind!r} needs the name of a file, as in {{name = "{kind}", file = "mine.{kind}"}}')
    return locate(file, folder or ".")


def _npz(
    file: str, folder: str | None, features: str, label: str, client: str | None
) -> tuple[Array, Array, Array | None, Sequence[str]]:
    """Features, labels, clients and names of the columns of a file."""
    _named(file, folder, "npz")
    arrays = find(file, folder or ".", needs=[name for name in (features, label, client) if name])
    x, y, owners = arrays[features], arrays[label], arrays.get(client or "clients")
    columns = arrays.get("columns", np.zeros(0, dtype=str))
    if x.ndim < 2 or y.ndim not in (1, 2) or len(y) != len(x):
        raise DataError(
            f"{file}: expected {features} of shape (n, ...) and {label} of shape (n,); got {x.shape} and {y.shape}"
        )
    if owners is not None and owners.shape != (len(x),):
        raise DataError(f"{file}: expected a client for each of {len(x)} rows; got shape {owners.shape}")
    if len(columns) and columns.shape != x.shape[1:]:
        raise DataError(f"{file}: expected a name in columns for each of {x.shape[1:]} features; got {columns.shape}")
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        x = (x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)) / np.float32(255)
    return x, y.reshape(-1) if y.ndim == 2 and y.shape[1] == 1 else y, owners, columns.tolist()


def _csv(file: str, folder: str | None) -> Columns:
    path = _named(file, folder, "csv")
    try:
        packed = path.suffix == ".gz"
        with (gzip.open if packed else open)(path, "rt", encoding="utf-8-sig", newline="") as opened:
            sign = separator(opened.readline())
            opened.seek(0)
            names, *rows = list(csv_files.reader(opened, strict=True, delimiter=sign)) or [[]]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected text in UTF-8 ({error}); save it as such") from error
    except (csv_files.Error, ValueError, EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: expected a table of values between commas, names first: {error}") from error
    names, rows = [name.strip() for name in names], [row for row in rows if row]
    if not names:
        raise DataError(f"{path}: expected a table, the names of its columns first; the file is empty")
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise DataError(f"{path}: expected a name of its own for every column; two are called {twice!r}")
    if wrong := next((i for i, row in enumerate(rows, 1) if len(row) != len(names)), None):
        raise DataError(
            f"{path}: row {wrong}: expected {len(names)} values, one for each name; got {len(rows[wrong - 1])}"
        )
    columns = {name: [row[i].strip() for row in rows] for i, name in enumerate(names)}
    return columns if sign == "," else {name: list(map(with_point, values)) for name, values in columns.items()}


def separator(line: str) -> str:
    """What stands between the names of columns: a comma, a semicolon or a tab, whichever there is most of.

    >>> separator("age;label"), separator('"a;b;c",label'), separator("label")
    (';', ',', ',')
    """
    return max(",;\t", key=re.sub('"[^"]*"', "", line).count)


def with_point(value: str) -> str:
    """A number with its decimal comma as a point; anything else as it is.

    >>> with_point("3,5"), with_point("a, b")
    ('3.5', 'a, b')
    """
    pointed = value.replace(",", ".")
    return pointed if _is_number(pointed) else value


def _parquet(file: str, folder: str | None) -> Columns:
    path = _named(file, folder, "parquet")
    read = require("pyarrow.parquet", "data", "a Parquet file").read_table
    try:
        table = read(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a Parquet file: {str(error).partition(chr(10))[0]}") from error
    columns: dict[str, list[object]] = table.to_pydict()
    return {name: ["" if value is None else str(value) for value in values] for name, values in columns.items()}


def _table(
    parts: Sequence[Columns], file: str, label: str, client: str | None, drop: Sequence[str],
    test: float | str, classes: int | None, numbers: bool,
) -> Dataset:  # fmt: skip
    """A data set from a table, and from a second one with the same columns to test on."""
    first, second = parts[0], parts[1] if len(parts) > 1 else {}
    drop = [drop] if isinstance(drop, str) else drop
    for name in filter(None, (label, client, *drop)):
        if name not in first:
            hint = "; expected commas, semicolons or tabs between names" if len(first) == 1 else ""
            raise DataError(f"{file} has no column {name!r}; {nearest(name, first)}{hint}")
    client = client or ("client" if "client" in first else None)
    if second and (missing := sorted(set(first) - set(second) - {client or "", *drop})):
        raise DataError(f"{test} has no column {missing[0]!r}, which {file} has")
    size, more = len(first[label]), len(second.get(label, ()))
    columns = {name: [*values, *second.get(name, [""] * more)] for name, values in first.items()}
    owners = None if client is None else np.array(columns[client])
    if not size:
        raise DataError(f"{file}: expected rows below the names; got none")
    places = np.array([*range(1, size + 1), *range(1, more + 1)])
    if "" in columns[label]:
        row = whose(columns[label].index(""), owners, places)
        raise DataError(f"{file}: {row}: expected a label in column {label!r}; got none")
    used = [name for name in columns if name not in {label, client, *drop}]
    if not used:
        raise DataError(f"{file}: expected columns of features beside {label!r}; got none")
    for name in used:
        _check_column(name, columns[name], owners, places, file)
    share = np.arange(size + more) >= size if isinstance(test, str) else held_back(owners, size, test, file)
    made = {name: column(columns[name], ~share, codes=False) for name in used}
    ends = np.cumsum([part.shape[1] for part in made.values()])
    figures = {name: int(end) - 1 for name, end in zip(used, ends, strict=True) if _is_number(columns[name][0])}
    labels, known = _labels(columns[label], numbers, classes)
    x = np.concatenate(list(made.values()), axis=1)
    return dataset_of(Table(x, labels, owners, share, places, known, figures), file, classes, numbers)


def _check_column(name: str, values: list[str], owners: Array | None, places: Array, file: str) -> None:
    """A column is all numbers, or a few words."""
    is_number = np.array([_is_number(value) for value in values])
    good, wanted = is_number, f"a number in column {name!r}, as in other rows"
    if is_number.all():
        good, wanted = np.isfinite([float(value) for value in values]), f"a finite number in column {name!r}"
    if is_number.any() and not good.all():
        row = int(np.argmin(good))
        raise DataError(f"{file}: {whose(row, owners, places)}: expected {wanted}; got {values[row]!r}")
    if not is_number.any() and len(known := set(values)) > WORDS:
        raise DataError(
            f"{file}: column {name!r} has {len(known):,} different words; expected numbers or at most {WORDS} words: "
            f"leave it out with drop = [{name!r}]"
        )


def _labels(values: list[str], numbers: bool, classes: int | None) -> tuple[Array, tuple[str, ...] | None]:
    """Words; numbers; or classes, where all are whole: as they are if it is known how many, else those found, in order.

    >>> _labels(["3.0", "1.0", "3.0"], False, None), _labels(["1.5", "2"], False, None)
    ((array([1, 0, 1]), ('1', '3')), (array([1.5, 2. ]), None))
    """
    if not all(map(_is_number, values)):
        return np.array(values), None
    found = [float(value) for value in values]
    if numbers or not all(number.is_integer() for number in found):
        return np.array(found), None
    if classes:
        return np.array(list(map(int, found))), None
    known, codes = np.unique(found, return_inverse=True)
    return codes, tuple(str(int(label)) for label in known)


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


@register("dataset", "folders")
def folders(
    path: str = "",
    size: int | None = None,
    grey: bool = False,
    test: float | str = TEST,
    folder: str | None = None,
) -> Dataset:
    """Images of your own in folders: ``path/class/image``, or ``path/client/class/image``; needs Pillow.

    Images are of one size, or made ``size`` pixels wide and high; in colour, or ``grey``. ``test`` is a share of every
    client's images, or another such folder.
    """
    if not path:
        raise DataError('dataset \'folders\' needs the name of a folder, as in {name = "folders", path = "photos"}')
    pillow = require("PIL.Image", "data", "dataset 'folders'")
    places = [
        (path, locate(path, folder or ".")),
        *([(test, locate(test, folder or "."))] if isinstance(test, str) else []),
    ]
    found = [_images(root, name) for name, root in places]
    files = [file for part in found for file in part]
    x = [_pixels(file, size, grey, pillow) for file in files]
    if other := next((i for i, image in enumerate(x) if image.shape != x[0].shape), None):
        raise DataError(
            f"{files[other]}: expected {x[0].shape[1]} x {x[0].shape[0]} pixels, as {files[0].name} has; got "
            f"{x[other].shape[1]} x {x[other].shape[0]}: set size to make them alike"
        )
    labels = np.array([file.parent.name for file in files])
    owned = len(found[0][0].relative_to(places[0][1]).parts) == 3
    owners = np.array([file.parents[1].name for file in files]) if owned else None
    apart = np.arange(len(files)) >= len(found[0])
    share = apart if isinstance(test, str) else held_back(owners, len(files), test, path)
    pixels = np.stack(x).transpose(0, 3, 1, 2) / np.float32(255)
    return dataset_of(Table(pixels, labels, owners, share, np.array([file.name for file in files])), path)


def _images(root: Path, name: str) -> list[Path]:
    """The images below a folder, all of them as deep."""
    files = sorted(file for file in root.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
    depths = {len(file.relative_to(root).parts) for file in files}
    if depths not in ({2}, {3}):
        got = f"images {' and '.join(str(d - 1) for d in sorted(depths))} folders deep" if files else "no images"
        raise DataError(f"{root}: expected {name}/class/image, or {name}/client/class/image; got {got}")
    return files


def _pixels(file: Path, size: int | None, grey: bool, pillow: ModuleType) -> Array:
    """An image as 8-bit numbers (height, width, channels)."""
    try:
        with pillow.open(file) as opened:
            image = opened.convert("L" if grey else "RGB")
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise DataError(f"{file} cannot be read as an image: {error}") from error
    pixels = np.asarray(image if size is None else image.resize((size, size)))
    return pixels[:, :, None] if grey else pixels
