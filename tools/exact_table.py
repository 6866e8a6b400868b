r"""Writes the tables of `tests/exact/README.md`.

    python tools/exact_table.py [NAME ...]

Every number in a table of that page comes from here. A table stands between the comments
`begin NAME` and `end NAME`; the words around them are the page's own, and stay.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "tests" / "exact" / "README.md"

sys.path.insert(0, str(ROOT))

from tests.exact.tables import TABLES  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TABLES))
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in TABLES]
    if unknown:
        parser.error(f"no table {unknown[0]!r}; there are {', '.join(TABLES)}")
    for name in args.names or TABLES:
        start = time.monotonic()
        table = TABLES[name]().markdown()
        text = PAGE.read_text(encoding="utf-8")
        mark = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        if not mark.search(text):
            raise SystemExit(f"{PAGE} has no place for {name!r}: <!-- begin {name} -->")
        # a function, since a table may hold what a replacement would take for its own
        text = mark.sub(lambda m, table=table: f"{m[1]}{table}\n{m[2]}", text)
        PAGE.write_text(text, encoding="utf-8")
        print(f"{name}: {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
