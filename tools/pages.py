r"""Pages whose tables are made by a command, and whose words are their own.

A table stands between the comments `begin NAME` and `end NAME`; the words around them stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

__all__ = ["commanded", "filled", "number", "table", "updated"]


def filled(
    text: str, name: str, made: str, join: Callable[[str, str], str] = lambda old, new: new
) -> str:
    r"""A page with one of its tables made anew.

    Arguments:
        text: The page.
        name: The name of the table.
        made: The new one.
        join: What makes one of the old and the new, by default the new alone.
    """
    pattern = rf"(<!-- begin {name} -->\n)(.*?)(<!-- end {name} -->)"
    text, found = re.subn(pattern, lambda m: m[1] + join(m[2], made) + m[3], text, flags=re.DOTALL)
    if found != 1:
        raise SystemExit(f"the page has {found} places for the table {name!r}, expected one")
    return text


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def updated(old: str, new: str) -> str:
    r"""Tables with what is new in place of what was there; rows and columns that are not among it
    stay. Tables are told apart by their first words, rows by theirs and by those of the row in bold
    above."""
    tables = {t[0][0]: t for t in _tables(old)}
    for made in _tables(new):
        known = tables.setdefault(made[0][0], [made[0]])
        head = list(dict.fromkeys([*known[0], *made[0]]))
        cells: dict[tuple[str, str], dict[str, str]] = {}
        for part in (known, made):
            section = ""
            for row in part[1:]:
                section = row[0] if row[0].startswith("**") and not any(row[1:]) else section
                cells.setdefault((section, row[0]), {}).update(zip(part[0], row, strict=True))
        order = sorted(
            cells, key=lambda key: list(dict.fromkeys(k[0] for k in cells)).index(key[0])
        )
        tables[made[0][0]] = [head, *([cells[key].get(k, "·") for k in head] for key in order)]
    return "\n".join(table(t[0], t[1:]) for t in tables.values())


def commanded(old: str, new: str) -> str:
    r"""Commands, those that wrote the same scores replaced, and that of the page last."""
    known: dict[str, str] = {}
    for text in (old, new):
        for command in re.findall(
            r"^    (?:appa|python).*\n(?:^        .*\n)*", text, re.MULTILINE
        ):
            kind = " ".join(command.split()[:3])
            out = re.search(r"--out (\S+)", command)
            known[f"{kind} {out[1]}" if out else "page"] = command
    names = list(
        dict.fromkeys(re.findall(r"--out (runs/([\w-]+)/scores)", "".join(known.values())))
    )
    page = " ".join(f"{name}={folder}" for folder, name in names)
    known["page"] = f"    python tools/prior_page.py {page}\n"
    return "\n" + "".join([*(v for k, v in known.items() if k != "page"), known["page"]]) + "\n"


def _tables(text: str) -> list[list[list[str]]]:
    r"""Tables as rows of cells, the first being their heads."""
    parts = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    rows = ([line.strip()[1:-1].split("|") for line in part.splitlines()] for part in parts)
    split = ([[cell.strip() for cell in row] for row in part] for part in rows)
    return [[part[0], *part[2:]] for part in split]


def number(value: float | None, digits: int = 3) -> str:
    return "·" if value is None or value != value else f"{value:.{digits}f}".replace("-", "−")
