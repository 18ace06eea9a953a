"""Prose and identifiers use standard terms: words of a private dialect are refused.

``tests/allowed_words.txt`` lists the remaining hits as ``FILE COUNT WORD``.
``python tests/test_language.py --write`` removes entries without hits and follows renamed files.
It never allows more of a word than before.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = "src", "tests"
ALLOWED = ROOT / "tests" / "allowed_words.txt"

# In docstrings, comments, and strings with a space. "_" is a space here, so that this file has no hits.
PHRASES = (
    *("told_of", "(?:is|are|was|were)_told", "asked_for", "stands?_in", "comes?_down_to", "puts?_back"),
    *("held_against", "made_once", "nothing_to_do", "what_is_(?:told|said|asked|given|kept|left|taken|made)"),
    *("in_turns", "by_turns", "of_which", "(?<!there_)is_no"),
    *("anew", "whoever", "untold", "besides", "shortly", "heard"),
)
PROSE = re.compile(rf"\b({'|'.join(PHRASES).replace('_', ' ')})\b", re.IGNORECASE)
# In identifiers: between underscores, or as a whole.
PARTS = {
    *("told", "asked", "handed", "given", "taken", "known", "made", "kept"),
    *("unseen", "untold", "look", "looked", "anew", "whoever", "place", "places"),
}
WHOLE = {"what", "why_not"}
# Matches in every file that has a hit, and in few others: parsing takes most of the time.
START = "(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))"
SUSPECT = re.compile(rf"(?i:{PROSE.pattern})|{START}(?i:{'|'.join(PARTS | WHOLE)})(?![a-z])")
PUBLIC = {"place", "Place", "in_place", "inplace"}

Allowance = Counter[tuple[str, str]]  # number of hits by file and word


class Hit(NamedTuple):
    """A refused word."""

    file: str
    line: int
    word: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.word!r}"


def refused_in_name(name: str) -> list[str]:
    """Return the words of an identifier that are refused."""
    name = name.strip("_")
    if name in WHOLE:
        return [name]
    parts = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
    is_public = name in PUBLIC or "in_place" in name
    return [part for part in parts if part in PARTS and not (part.startswith("place") and is_public)]


def defined_name(node: ast.AST) -> str:
    """Return the identifier that a node defines or assigns; empty if none."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    return ""


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def hits_in(source: str, file: str = "") -> Iterator[Hit]:
    """Yield the refused words of a Python file."""
    if not SUSPECT.search(source):
        return
    prose = list(comments(source)) if PROSE.search(source) else []  # tokenizing takes most of the time
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            prose.append((node.lineno, node.value))
        elif name := defined_name(node):
            yield from (Hit(file, node.lineno, word) for word in refused_in_name(name))  # type: ignore[attr-defined]
    for line, text in prose:
        for found in PROSE.finditer(text):
            yield Hit(
                file, line + text.count("\n", 0, found.start()), " ".join(found.group().lower().split())
            )


def all_hits() -> list[Hit]:
    """Return the refused words of all Python files, by file."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return [
        hit
        for path in paths
        for hit in hits_in(
            path.read_text(encoding="utf-8", errors="replace"), path.relative_to(ROOT).as_posix()
        )
    ]


def allowance(text: str) -> Allowance:
    """Parse the allow-list. A merge may duplicate an entry: the larger count applies."""
    allowed: Allowance = Counter()
    for entry in text.splitlines():
        file, count, word = entry.split(" ", 2)
        allowed[file, word] = max(allowed[file, word], int(count))
    return allowed


def refused(hits: list[Hit], allowed: Allowance) -> list[Hit]:
    """Return the hits of each file and word whose count exceeds the allowance."""
    found = Counter((hit.file, hit.word) for hit in hits)
    return [hit for hit in hits if found[hit.file, hit.word] > allowed[hit.file, hit.word]]


def test_words_are_standard_or_allowed() -> None:
    hits, allowed = all_hits(), allowance(ALLOWED.read_text(encoding="utf-8"))
    assert not [str(hit) for hit in refused(hits, allowed)]
    unused = allowed - Counter((hit.file, hit.word) for hit in hits)
    assert not unused, "no longer found: run `python tests/test_language.py --write`"


# "~" is removed, so that this file has no hits.
SOURCE = '''
def told(place, in_place, what, taken_ns):
    """Return what i~s tol~d of a~new,
    o~f which there is no end, while it i~s no one's."""
    return "a~new"  # hel~d against it
'''


def test_prose_and_identifiers_are_searched() -> None:
    names = ["2: 'told'", "2: 'what'", "2: 'taken'"]
    prose = ["5: 'hel~d against'", "3: 'what i~s told'", "3: 'a~new'", "4: 'o~f which'", "4: 'i~s no'"]
    found = [str(hit).lstrip(":") for hit in hits_in(SOURCE.replace("~", ""))]
    assert found == [text.replace("~", "") for text in (*names, *prose)]


def test_hit_beyond_the_allowance_is_refused() -> None:
    hits = [Hit("a.py", line, "told") for line in (1, 2)]
    assert refused(hits, Counter({("a.py", "told"): 2})) == []
    assert refused(hits, Counter({("a.py", "told"): 1})) == hits
    assert refused(hits, Counter({("b.py", "told"): 2})) == hits


def test_larger_of_two_merged_entries_applies() -> None:
    assert allowance("a.py 1 told\na.py 3 told\n") == {("a.py", "told"): 3}


def main() -> None:
    """Print all hits, or write the allow-list."""
    hits = all_hits()
    if "--write" not in sys.argv:
        print(*hits, sep="\n")
        return
    found = Counter((hit.file, hit.word) for hit in hits)
    allowed = allowance(ALLOWED.read_text(encoding="utf-8")) if ALLOWED.exists() else found
    before, after = (Counter[str](), Counter[str]())
    for counts, by_word in ((allowed, before), (found, after)):
        for (_, word), count in counts.items():
            by_word[word] += count
    if grown := after - before:
        print(*(hit for hit in refused(hits, allowed) if hit.word in grown), sep="\n")
        sys.exit("more than before: use other words")
    entries = sorted(f"{file} {count} {word}\n" for (file, word), count in found.items())
    ALLOWED.write_text("".join(entries), encoding="utf-8")


if __name__ == "__main__":
    main()
