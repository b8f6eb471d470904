"""Log lines as JSON, of our own logger and of a package whose handler has a format of its own."""

import json
import logging
import sys

from fedwarden.core.log import FORM, JsonLines, Words, json_lines


class Own(logging.StreamHandler):
    def format(self, record):
        return "its own"


def test_another_packages_log_is_json_where_it_is_wanted(monkeypatch, capsys):
    log = logging.getLogger("of.another.package")
    log.addHandler(Own(sys.stderr))
    json_lines(log.name)
    log.warning("a line")
    monkeypatch.setenv(FORM, "json")
    json_lines(log.name)
    log.warning("line %d\x1b[2J", 2)
    plain, line = capsys.readouterr().err.splitlines()
    assert plain == "its own"
    told = json.loads(line)
    assert (told["level"], told["logger"], told["message"]) == ("warning", "of.another.package", "line 2\x1b[2J")
    assert "\x1b" not in line


def test_words_say_what_a_line_is_and_steer_no_terminal():
    def of(level):
        return Words().format(logging.LogRecord("x", level, "", 0, "%s is here\x1b[2J", ("it",), None))

    assert [of(level) for level in (logging.INFO, logging.WARNING, logging.ERROR)] == [
        f"{head}it is here\\x1b[2J" for head in ("", "warning ", "error: ")
    ]
    assert JsonLines().format(logging.LogRecord("x", 20, "", 0, "m", (), None)).startswith('{"time": "')
