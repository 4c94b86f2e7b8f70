"""What of an HTML page is its frame: found by where an element stands and what it is called.

A footer belongs to the nearest article, section or main around it (HTML-AAM, "contentinfo"); only
one without any is the page's. A header or aside of the page is told from content only where the
page says which part its content is. When in doubt it is content.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

MARK: Final = "data-ragpg-frame"

# What a footer, header or aside in it belongs to. Quotations and cells have footers of their own.
_OWNERS: Final = frozenset(
    {"article", "aside", "blockquote", "details", "figure", "main", "nav", "section", "td"}
)
_OWNER_ROLES: Final = frozenset({"article", "complementary", "main", "region"})
_CONTENT: Final = frozenset({"article", "main"})
_HEADINGS: Final = frozenset({"dt", "h1", "h2", "h3", "h4", "h5", "h6"})
# Whole words of `class` and `id`, as themes, generators and the tools that ask for consent write
# them. Inside content a `sidebar` is a box beside the text (docutils), so it counts outside alone.
_SIDEBARS: Final = frozenset(
    {"sidebar", "side-bar", "sidenav", "site-sidebar", "page-sidebar", "sphinxsidebar"}
)
_CONSENT: Final = frozenset(
    {
        "cookie-banner", "cookie-bar", "cookie-consent", "cookie-notice", "cookie-popup",
        "cookiebanner", "cookiebar", "cookieconsent", "cookie-law-info-bar", "cc-banner",
        "cc-window", "cybotcookiebotdialog", "didomi-host", "onetrust-consent-sdk",
    }
)  # fmt: skip
_BOXES: Final = frozenset({"aside", "dialog", "div", "section"})
# Their end is the end of what was left open in them, as HTML allows for `td` and `dt`.
_LISTS: Final = frozenset({"dl", "table"})
_NAMES: Final = "|".join(
    sorted(_OWNERS | _HEADINGS | _BOXES | _LISTS | {"button", "footer", "header"})
)
_TAG: Final = re.compile(
    r"<!--(?:.*?-->|.*)"
    r"|<(?P<raw>script|style|textarea|title|template)\b(?:.*?</(?P=raw)\b|.*)"
    rf"|<(?P<end>/?)(?P<name>{_NAMES})(?=[\s/>])"
    r"(?P<attributes>(?:[^>=]++|=\s*+(?:\"[^\"]*+\"|'[^']*+')?+)*+)",
    re.DOTALL | re.IGNORECASE,
)
_ATTRIBUTE: Final = re.compile(
    r"(?P<name>[^\s\"'>/=]++)"
    r"(?:\s*+=\s*+(?:\"(?P<double>[^\"]*+)\"|'(?P<single>[^']*+)'|(?P<plain>[^\s>]++)))?"
)


@dataclass(frozen=True, slots=True)
class _Open:
    """An element that is not closed yet; `mark` is its number among the marks, if it has one."""

    name: str
    owns: bool
    mark: int | None


@dataclass(slots=True)
class _Page:
    """What has been seen of a page. Counts spare a look at each open element for each new one."""

    # The offset at which each is written, and whether only if the page says what its content is.
    marks: list[tuple[int, bool]] = field(default_factory=list)
    dropped: set[int] = field(default_factory=set)
    elements: list[_Open] = field(default_factory=list)
    open_names: Counter[str] = field(default_factory=Counter)
    open_marks: set[int] = field(default_factory=set)
    owners: int = 0
    has_content: bool = False

    def start(self, name: str, attributes: dict[str, str], at: int) -> None:
        role = attributes.get("role", "")
        if name in _CONTENT or role in _CONTENT:
            self.has_content = True
            self.dropped |= self.open_marks  # whatever they are called, content stands in them
            self.open_marks.clear()
        mark = None
        if (if_content := self._framed(name, role, attributes)) is not None:
            mark = len(self.marks)
            self.marks.append((at, if_content))
            self.open_marks.add(mark)
        owns = name in _OWNERS or role in _OWNER_ROLES
        self.elements.append(_Open(name, owns, mark))
        self.open_names[name] += 1
        self.owners += owns

    def end(self, name: str) -> None:
        while self.open_names[name]:
            last = self.elements.pop()
            self.open_names[last.name] -= 1
            self.owners -= last.owns
            if last.mark is not None:
                self.open_marks.discard(last.mark)
            if last.name == name:
                return

    def _framed(self, name: str, role: str, attributes: dict[str, str]) -> bool | None:
        """None for content; True where it is frame only if the page says what its content is."""
        if name == "button":
            opens = "aria-expanded" in attributes
            return None if opens or any(self.open_names[one] for one in _HEADINGS) else False
        words = set(f"{attributes.get('class', '')} {attributes.get('id', '')}".split())
        if name in _BOXES and (words & _CONSENT or _asks_for_consent(role, attributes)):
            return False
        if self.owners:
            return None
        if name == "footer" or (name in _BOXES and words & _SIDEBARS):
            return False
        return True if name in {"aside", "header"} or role == "complementary" else None


def mark_frame(source: str) -> str:
    """The page with MARK in each start tag of its frame: footers, sidebars, cookie banners.

    Buttons are marked too, unless one opens something or stands in a heading: its words are then
    those of what it opens. Linear in the page.
    """
    page = _Page()
    for match in _TAG.finditer(source):
        name = (match["name"] or "").lower()
        if name and match["end"]:
            page.end(name)
        elif name:
            page.start(name, _attributes(match["attributes"]), match.end("name"))
    parts = []
    done = 0
    for number, (at, if_content) in enumerate(page.marks):
        if number not in page.dropped and (page.has_content or not if_content):
            parts += [source[done:at], f" {MARK}"]
            done = at
    return "".join([*parts, source[done:]])


def _attributes(text: str) -> dict[str, str]:
    return {
        match["name"].lower(): (match["double"] or match["single"] or match["plain"] or "").lower()
        for match in _ATTRIBUTE.finditer(text)
    }


def _asks_for_consent(role: str, attributes: dict[str, str]) -> bool:
    label = re.findall(r"\w+", attributes.get("aria-label", ""))
    return role in {"alertdialog", "dialog", "region"} and not {"cookie", "cookies"}.isdisjoint(
        label
    )
