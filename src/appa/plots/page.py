r"""A page of text, tables and figures in one HTML file, which needs nothing else to be read.

Figures are part of the file, there is no script, and nothing is asked of a network: a policy in the
page's head forbids it. It follows the reader's choice of light or dark, in which figures keep the
white they were drawn on, folds tables that are wide, and prints. Every text that is given is
escaped; what is put together here is :class:`Html`, and is not.
"""

from __future__ import annotations

import base64
import html
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import StoreError

__all__ = [
    "Html",
    "Section",
    "details",
    "listing",
    "page",
    "paragraph",
    "picture",
    "points",
    "preformatted",
    "ready",
    "save",
    "table",
]

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
SIGNATURE = b"\x89PNG\r\n\x1a\n"

STYLE = """
:root { color-scheme: light dark;
  --paper: #fdfdfc; --ink: #1b2430; --muted: #5c6773; --line: #d8dde2; --tint: #f1f3f5;
  --link: #00568a; --good: #00704f; --bad: #a84300; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14181d; --ink: #e4e8ec; --muted: #a0abb6; --line: #333c46; --tint: #1d232a;
  --link: #7cc4f5; --good: #4fd1a8; --bad: #ff9d5c; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
.sheet { max-width: 78rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
ul { margin: .3rem 0 .9rem; padding-left: 1.3rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; text-wrap: balance; }
h2 { font-size: 1.35rem; margin: 3rem 0 .5rem; padding-top: .75rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .4rem; }
p, .lead { max-width: 68ch; margin: .4rem 0 .9rem; }
.lead { color: var(--muted); font-size: 1.05rem; }
a { color: var(--link); }
nav ol { columns: 16rem; margin: .3rem 0; padding-left: 1.4rem; }
nav { background: var(--tint); border-radius: .5rem; padding: .6rem 1rem; margin: 1.2rem 0; }
nav strong { font-size: .95rem; }
.scroll { overflow-x: auto; margin: .6rem 0 1.2rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { caption-side: top; text-align: left; color: var(--muted); padding-bottom: .35rem;
  min-width: 20rem; }
th, td { padding: .22rem .7rem .22rem 0; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; vertical-align: bottom; }
thead th { white-space: normal; max-width: 8rem; }
th.text, td.text { text-align: left; }
td.wrap { white-space: normal; overflow-wrap: anywhere; min-width: 18rem; max-width: 60rem; }
tbody th { font-weight: 500; text-align: left; vertical-align: top; }
td.better { color: var(--good); font-weight: 600; }
td.worse { color: var(--bad); font-weight: 600; }
figure { margin: 1rem 0 1.6rem; }
figure img { display: block; max-width: 100%; height: auto; margin-bottom: .5rem;
  background: #fff; padding: .4rem; border: 1px solid var(--line); border-radius: .4rem; }
figcaption { max-width: 68ch; color: var(--muted); font-size: .92rem; margin-top: .45rem; }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--link); }
pre { background: var(--tint); padding: .8rem 1rem; border-radius: .4rem; font-size: .82rem;
  overflow-x: auto; }
.missing { color: var(--muted); font-style: italic; }
footer { margin-top: 3rem; color: var(--muted); font-size: .85rem; }
@media print {
  :root { --paper: #fff; --ink: #000; --muted: #333; --line: #bbb; --tint: #fff; --link: #000;
    --good: #000; --bad: #000; }
  body { font-size: 10pt; } .sheet { max-width: none; padding: 0; }
  figure img, tr { break-inside: avoid; } h2, h3, caption { break-after: avoid; }
  thead { display: table-header-group; } .scroll, pre { overflow: visible; }
  table { font-size: 8pt; } pre { white-space: pre-wrap; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
"""


class Html(str):
    r"""Text that is markup already."""


def escape(text: object) -> Html:
    r"""Any text as markup that shows it."""
    return text if isinstance(text, Html) else Html(html.escape(str(text), quote=True))


@dataclass
class Section:
    r"""A section of a page.

    Arguments:
        title: Its title.
        items: What is in it, see the functions of this file.
    """

    title: str
    items: list[Html] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        r"""What links to it."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    def add(self, *items: Html) -> Section:
        self.items += items
        return self


def paragraph(text: object, kind: str = "") -> Html:
    r"""A paragraph; of the kind `missing`, of what is not there."""
    name = f' class="{escape(kind)}"' if kind else ""
    return Html(f"<p{name}>{escape(text)}</p>")


def points(items: Iterable[object]) -> Html:
    r"""Sentences, one below the other."""
    return Html("<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>")


def preformatted(text: str) -> Html:
    r"""Text as it is."""
    return Html(f"<pre>{escape(text)}</pre>")


def details(title: str, *items: Html) -> Html:
    r"""Something to unfold; printed, it is unfolded."""
    return Html(f"<details><summary>{escape(title)}</summary>{''.join(items)}</details>")


def listing(pairs: Iterable[tuple[str, str]], caption: str) -> Html:
    r"""A table of names and what they are, in words."""
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td class="text wrap">{escape(value)}</td></tr>'
        for key, value in pairs
    )
    return _scroll(
        f"<table><caption>{escape(caption)}</caption><tbody>{rows}</tbody></table>", caption
    )


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    caption: str,
    *,
    text: int = 1,
    marks: Sequence[Sequence[str]] | None = None,
) -> Html:
    r"""A table of numbers.

    Arguments:
        heads: The heads of columns.
        rows: The rows, as long as the heads.
        caption: What the table shows, and in which units.
        text: The number of columns at the left that are words.
        marks: For each row and column a kind, `better`, `worse` or nothing.
    """

    def cell(value: object, row: int, column: int) -> str:
        if column == 0:
            return f'<th scope="row">{escape(value)}</th>'
        kinds = ["text"] if column < text else []
        kinds += [marks[row][column]] if marks and marks[row][column] else []
        name = f' class="{escape(" ".join(kinds))}"' if kinds else ""
        return f"<td{name}>{escape(value)}</td>"

    top = "".join(
        f'<th scope="col"{" class=text" if k < text else ""}>{escape(head)}</th>'
        for k, head in enumerate(heads)
    )
    body = "".join(
        f"<tr>{''.join(cell(value, i, k) for k, value in enumerate(row))}</tr>"
        for i, row in enumerate(rows)
    )
    return _scroll(
        f"<table><caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead>"
        f"<tbody>{body}</tbody></table>",
        caption,
    )


def _scroll(inner: str, name: str) -> Html:
    # a region that scrolls must be reached by keyboard, and have a name
    return Html(
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}">{inner}</div>'
    )


def picture(images: bytes | Sequence[bytes], alt: str | Sequence[str], caption: str) -> Html:
    r"""A figure of one image or several, within the page.

    Arguments:
        images: PNGs.
        alt: What each shows, for those who do not see it.
        caption: How to read them, and what a good one looks like.
    """
    images = [images] if isinstance(images, bytes) else images
    alts = [alt] if isinstance(alt, str) else alt
    parts = "".join(_image(image, words) for image, words in zip(images, alts, strict=True))
    return Html(f"<figure>{parts}<figcaption>{escape(caption)}</figcaption></figure>")


def _image(image: bytes, alt: str) -> str:
    if not image.startswith(SIGNATURE):
        raise ValueError("a picture is given as the bytes of a PNG")
    width, height = (int.from_bytes(image[k : k + 4], "big") for k in (16, 20))
    data = base64.b64encode(image).decode("ascii")
    return (
        f'<img src="data:image/png;base64,{data}" alt="{escape(alt)}" '
        f'width="{width}" height="{height}">'
    )


def page(title: str, lead: str, sections: Sequence[Section], foot: str = "") -> str:
    r"""The page.

    Arguments:
        title: Its title.
        lead: What it is, in a sentence.
        sections: Its sections, of which the first table is.
        foot: What is said at its end.
    """
    links = "".join(
        f'<li><a href="#{escape(s.anchor)}">{escape(s.title)}</a></li>' for s in sections
    )
    body = "".join(
        f'<section aria-labelledby="{escape(s.anchor)}"><h2 id="{escape(s.anchor)}">'
        f"{escape(s.title)}</h2>{''.join(s.items)}</section>\n"
        for s in sections
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body><div class=sheet><header>"
        f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>'
        f'<nav aria-label="Contents"><strong>Contents</strong><ol>{links}</ol></nav></header>\n'
        f"<main>{body}</main><footer>{escape(foot)}</footer></div></body></html>\n"
    )


# ---------------------------------------------------------------- as a file


def ready(path: str | Path) -> Path:
    r"""The path, if a page can be written there; to be asked before the work that it will hold."""
    path = Path(path)
    if path.is_dir() or path.suffix.lower() not in (".html", ".htm"):
        raise StoreError(f"found {str(path)!r} to write a page to; name a file, e.g. report.html")
    partial = _partial(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def save(text: str, path: str | Path) -> Path:
    r"""Writes a page, which is there whole or not at all."""
    path = ready(path)
    partial = _partial(path)
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        partial.unlink(missing_ok=True)
    return path


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{str(path)!r} cannot be written ({error.strerror or error}); choose a folder that can be "
        "written to and has room"
    )
