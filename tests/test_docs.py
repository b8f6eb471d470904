"""Every code block of the documentation runs, in the order of its page, and prints what the page says.

A page has a folder, a workspace and a namespace of its own; its blocks build on each other. What a fence is, by its
language:

    python    an example with prompts is a doctest; other code is executed
    toml      a scenario, or a part of one; every name in it is looked up
    bash      commands; those of fedwarden are parsed even where they are not run
    console   commands after ``$``, each with its output
    text      the output of the commands above it
    json      well-formed

A block that follows the words "save as `name`" is written to that file. Comments above a fence say what is special:
``<!-- not run: why -->``, ``<!-- slow: why -->`` (run by ``make test-all``), ``<!-- exits with 1 -->``.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
import torch
import typer

from fedwarden.cli import COMMANDS, command_of, main
from fedwarden.core import registry
from fedwarden.sim.change_audit import AuditConfig
from fedwarden.sim.scenario import load_scenario

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
IN_A_CHECKOUT = ("benchmarks", "examples", "pyproject.toml", "tests")  # what the commands of a page may name

FENCE = re.compile(r"^```(\w*) *$")
COMMENT = re.compile(r"<!-- *(not run|slow|exits with):? *(.*?) *-->")
SAVE = re.compile(r"save (?:this |it |them )?as `([\w.-]+)`", re.IGNORECASE)
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
INLINE = re.compile(r"`fedwarden\s+(\w[^`]*)`")
COMMAND = re.compile(r"^ {4}(?:fedwarden|make|pip|python) ", re.MULTILINE)
PROGRAM = re.compile(r"^(?:\w+=\S+ )*(fedwarden|make|\S*python) ")
SHELL = re.compile(r"[|><;&$`]")  # what only a shell understands
VARYING = re.compile(r"\d*\.\d+|\d+(?= MADs)|[▁-█]+")  # may differ from machine to machine; other whole numbers may not


@dataclass(frozen=True)
class Block:
    """A fence: where it stands, its language, its text, and what the lines above it say."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str = ""
    slow: str = ""
    code: int = 0
    file: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """One for each line of a shell block, comments left out."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def blocks(page: Path) -> Iterator[Block]:
    lines, at = page.read_text(encoding="utf-8").splitlines(), 0
    while at < len(lines):
        opened = FENCE.match(lines[at])
        at += 1
        if not opened:
            assert not lines[at - 1].lstrip().startswith("```"), f"{page}:{at}: cannot read {lines[at - 1]!r}"
            continue
        end = lines.index("```", at)
        marks, words = _above(lines[: at - 1])
        saved = SAVE.search(words)
        yield Block(
            page, at, opened[1], "\n".join(lines[at:end]) + "\n", marks.get("not run", ""), marks.get("slow", ""),
            int(marks.get("exits with", 0)), saved[1] if saved else "",
        )  # fmt: skip
        at = end + 1


def _above(lines: list[str]) -> tuple[dict[str, str], str]:
    """The comments above a fence, and the paragraph above them."""
    marks, words = {}, []
    for line in reversed(lines):
        comment = COMMENT.fullmatch(line.strip())
        if comment and not words:
            marks[comment[1]] = comment[2]
        elif line.strip() and line != "```":
            words.insert(0, line)
        elif words or line:
            break
    return marks, " ".join(words)


class Reader:
    """Does what a page says, from top to bottom."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capture = folder, capture
        self.names: dict[str, object] = {"__name__": "page"}
        self.printed: str | None = ""  # by the commands of the block before; None where they were not run

    def read(self, block: Block) -> None:
        do = getattr(self, f"do_{block.language}", None)
        assert do, f"{block}: the fence {block.language!r} cannot be checked; say why in <!-- not run: ... --> above it"
        if block.file:
            (self.folder / block.file).write_text(block.text, encoding="utf-8")
        do(block)

    def do_python(self, block: Block) -> None:
        if block.file:
            assert not doctest.testmod(import_module(Path(block.file).stem)).failed, self.capture.readouterr().out
        elif ">>>" in block.text:
            self._examples(block)
        else:
            exec(compile(block.text, str(block), "exec"), self.names)

    def do_toml(self, block: Block) -> None:
        table = tomllib.loads(block.text)
        if "project" not in table and "superlink" not in table:
            check_scenario(table)

    def do_json(self, block: Block) -> None:
        json.loads(block.text)

    def do_bash(self, block: Block) -> None:
        self.printed = "".join(self._command(command, block.code) for command in block.commands)

    def do_console(self, block: Block) -> None:
        self.do_bash(block)
        compare(block, "\n".join(line for line in block.text.splitlines() if line[:2] != "$ "), self.printed or "")

    def do_text(self, block: Block) -> None:
        if self.printed is not None:
            compare(block, block.text, self.printed)

    def _examples(self, block: Block) -> None:
        test = doctest.DocTestParser().get_doctest(block.text, {}, str(block), str(block.page), block.line)
        test.globs, said = self.names, list[str]()
        doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append, clear_globs=False)
        assert not said, "".join(said)

    def _command(self, command: str, code: int) -> str:
        """Run a command; one of fedwarden by itself needs no process of its own. What it printed."""
        words = shlex.split(command, comments=True)
        if words[0] == "PYTHONPATH=.":
            words = words[1:]
        if words[0] == "fedwarden" and not SHELL.search(command.partition(" #")[0]):
            self.capture.readouterr()
            found, (said, error) = main(words[1:]), self.capture.readouterr()
        else:
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
            found, said, error = done.returncode, done.stdout, done.stderr
        assert found == code, f"{command} ended with {found}; expected {code}\n{said}{error}"
        return said


def check_scenario(table: dict[str, object]) -> None:
    """A scenario whose every name and option exists."""
    table = dict(table)
    if "audit" in table:
        AuditConfig.model_validate(table.pop("audit"))
    scenario = load_scenario(table)
    scenario.guard.build()
    for attack in scenario.attacks:
        attack.make("attack")
    for kind, part in (
        ("dataset", scenario.data.dataset), ("partition", scenario.data.partition), ("model", scenario.model)
    ):  # fmt: skip
        assert set(part.options) <= set(registry.parameters(registry.lookup(kind, part.name)))


def check_command(block: Block, command: str) -> None:
    """The arguments of a fedwarden command are ones it takes; a make target and a script exist."""
    known = PROGRAM.match(command)
    if not known:
        return
    words = shlex.split(SHELL.split(command[known.start(1) :])[0], comments=True)
    if words[0] == "fedwarden":
        command, rest = parser_of(words[1:])
        command.make_context(words[1], rest)
    elif words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert set(words[1:]) <= set(targets), f"{block}: no target {words[1:]} in the Makefile"
    elif words[1].endswith(".py"):
        assert (ROOT / words[1]).exists() or (block.page.parent / words[1]).exists(), f"{block}: no {words[1]}"


def parser_of(words: Sequence[str]) -> tuple[typer.core.TyperCommand, list[str]]:
    """The command that these words call, and what is left for it."""
    assert words[0] in COMMANDS, f"there is no command {words[0]!r}"
    command, rest = command_of(words[0]), list(words[1:])
    while (parts := getattr(command, "commands", None)) is not None and rest and not rest[0].startswith("-"):
        command = parts[rest.pop(0)]
    return command, rest


def compare(block: Block, wanted: str, printed: str) -> None:
    """Every line that the page shows was printed, in this order; a page may leave out lines."""
    lines = iter(map(plain, printed.splitlines()))
    for line in wanted.splitlines():
        if line.strip() not in ("", "..."):
            assert plain(line) in lines, f"{block}: not printed in its place: {line!r}\nwas printed:\n{printed}"


def plain(line: str) -> list[str]:
    return VARYING.sub("#", line).split()


@pytest.fixture
def reader(tmp_path, monkeypatch, capsys, forgetful):
    """A reader in a folder that looks like a checkout, whose rules and modules are forgotten afterwards."""
    for name in IN_A_CHECKOUT:
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples" / "flower-quickstart")
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in {
        "FEDWARDEN_HOME": tmp_path / "home",
        "PYTHONPATH": tmp_path,
        "COLUMNS": "200",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }.items():
        monkeypatch.setenv(name, str(value))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Reader(tmp_path, capsys)
    torch.set_num_threads(threads)


def read(reader: Reader, page: Path, slow: bool) -> None:
    for block in blocks(page):
        if not block.not_run and (slow or not block.slow):
            reader.read(block)
        elif block.language in ("bash", "console"):
            reader.printed = None


def prose(page: Path) -> str:
    """A page without its fences."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [p for p in PAGES if any(blocks(p))], ids=named)
def test_the_blocks_of_a_page_run(reader, page):
    read(reader, page, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if any(b.slow for b in blocks(p))], ids=named)
def test_its_slow_blocks_run_too(reader, page):
    read(reader, page, slow=True)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_is_one_that_exists(page):
    assert not COMMAND.search(page.read_text(encoding="utf-8")), "a command stands in a fence, not indented"
    for block in blocks(page):
        if block.language in ("bash", "console"):
            for command in block.commands:
                check_command(block, command)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_command_within_a_sentence_exists_with_its_options(page):
    for words in map(str.split, INLINE.findall(prose(page))):
        if words[0].islower():  # COMMAND and its like stand for any
            known = {option for p in parser_of(words)[0].params for option in p.opts} | {"--help"}
            assert {w for w in words if w.startswith("-") and w != "-"} <= known, f"{named(page)}: {words}"


@pytest.mark.parametrize("page", [p for p in PAGES if "docs" not in p.parts], ids=named)
def test_links_from_outside_the_site_lead_somewhere(page):
    for target in LINK.findall(prose(page)):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{named(page)} links to {target}, which is not there"


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("```\nwhat is this?\n```\n", "cannot be checked"),
        ("```python\n>>> 1 + 1\n3\n```\n", "Expected:"),
        ("```bash\nfedwarden list rule\n```\n\n```text\nnothing of the kind\n```\n", "not printed"),
        ("```bash\nfedwarden list ruel\n```\n", "ended with 2"),
        ('```toml\n[guard]\npreset = "pid-mode"\n```\n', "did you mean 'pid_made'"),
    ],
)
def test_a_block_that_does_not_hold_fails(reader, tmp_path, monkeypatch, page, fault):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(page)
    with pytest.raises((AssertionError, ValueError), match=fault):
        read(reader, tmp_path / "page.md", slow=False)
