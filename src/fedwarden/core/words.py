"""Small pieces of sentences."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from shlex import quote
from unicodedata import category
from unicodedata import name as called

UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs", "Co"})  # what moves a cursor, turns text round, or has no form
ALIKE = ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE")  # alphabets with letters that look like Latin ones


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"]), listed(["a", "b", "c"], most=2)
    ('a', 'a, b and c', 'a, b and 1 more')
    """
    shown = [*names[:most], f"{len(names) - most} more"] if len(names) > most else list(names)
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def count(n: int, what: str) -> str:
    """A number with its noun.

    >>> count(1, "client"), count(3, "reply"), count(2, "way")
    ('1 client', '3 replies', '2 ways')
    """
    many = f"{what[:-1]}ies" if what.endswith("y") and what[-2] not in "aeiou" else f"{what}s"
    return f"{n:,} {what if n == 1 else many}"


def rounds_of(rounds: Sequence[int]) -> str:
    """Rounds in a few words.

    >>> rounds_of([3]), rounds_of([3, 5, 9])
    ('round 3', '3 rounds from 3 to 9')
    """
    return f"round {rounds[0]}" if len(rounds) == 1 else f"{len(rounds)} rounds from {rounds[0]} to {rounds[-1]}"


def printable(text: str) -> str:
    """A text that says no more than it shows: every character that steers a terminal or a page is written out.

    Clients choose some of what is printed, and an escape sequence can clear a screen or forge a line. So is a letter of
    another alphabet within a word of Latin ones, since it can make one name look like another.

    >>> print(printable("a\\x1b[2Jb\\r\\u202ec"), printable("two words, 20 \u00b0C"))
    a\\x1b[2Jb\\r\\u202ec two words, 20 \u00b0C
    >>> print(printable("B\u0430sel"), printable("\u041c\u043e\u0441\u043a\u0432\u0430-2"))
    B\\u0430sel \u041c\u043e\u0441\u043a\u0432\u0430-2
    """
    if text.isascii() and text.isprintable():
        return text
    return re.sub(r"[^\W\d_]+|.", _shown, text, flags=re.DOTALL)


def _shown(part: re.Match[str]) -> str:
    of = [called(c, "").partition(" ")[0] for c in part[0]]
    alike = ALIKE if "LATIN" in of else ()
    written = (category(c) in UNSEEN or alphabet in alike for c, alphabet in zip(part[0], of, strict=True))
    return "".join(c.encode("unicode_escape").decode() if w else c for c, w in zip(part[0], written, strict=True))


def spelt(client: str) -> str:
    """A client as an argument in a shell; after two dashes where its name begins with one.

    >>> spelt("north"), spelt("-west wing")
    ('north', "-- '-west wing'")
    """
    return f"{'-- ' if client.startswith('-') else ''}{printable(quote(client))}"


def short(text: str, most: int = 200) -> str:
    """What somebody else wrote, in one line of bounded length, with nothing in it that steers a terminal.

    >>> short("two\\nlines"), short("abcdef", most=3)
    ('two lines', 'abc')
    """
    return printable(" ".join(str(text)[: 4 * most].split()))[:most]


def abbreviated(names: Sequence[str], most: int = 12) -> dict[str, str]:
    """Each name by its first and last four characters where it is long and no other name would look the same.

    >>> abbreviated(["7", "9223372036854775807", "hospital-of-a", "hospital-of-b"])["9223372036854775807"]
    '9223…5807'
    >>> abbreviated(["hospital-of-the-north", "hospital-in-the-north"])["hospital-in-the-north"]
    'hospital-in-the-north'
    """
    brief = {name: name if len(name) <= most else f"{name[:4]}…{name[-4:]}" for name in dict.fromkeys(names)}
    times = Counter(brief.values())
    return {name: name if times[b] > 1 else b for name, b in brief.items()}


def reason(error: BaseException) -> str:
    """What an error says, in one line; its name where it says nothing.

    >>> reason(ValueError("two\\nlines")), reason(KeyError())
    ('two lines', 'KeyError')
    """
    try:
        return short(str(error)) or type(error).__name__
    except Exception:  # of a class that somebody else wrote
        return type(error).__name__


def percent(value: object) -> str:
    """A share as text; a dash where there is none.

    >>> percent(0.9612), percent(None), percent(float("nan"))
    ('96.1 %', '-', '-')
    """
    return f"{100 * value:.1f} %" if isinstance(value, int | float) and math.isfinite(value) else "-"


def number(value: float | None) -> str:
    """A score in four digits; a dash where there is none.

    >>> number(2.93567), number(None), number(float("nan"))
    ('2.936', '-', '-')
    """
    return "-" if value is None or math.isnan(value) else f"{value:.4g}"
