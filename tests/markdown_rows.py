"""The cells of a Markdown table, for tests of pages."""


def rows(text: str) -> list[list[str]]:
    """The cells of the table in a text, without its header."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
