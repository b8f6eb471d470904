"""Images of one's own, in a folder for each class."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np

from ....core.errors import require
from ....core.registry import register
from ..own import TEST, Table, dataset_of, held_back
from . import Array, DataError, Dataset, locate

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".pgm", ".tif", ".tiff", ".webp"}


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
