"""Prose and identifiers use standard terms: words of a private dialect are refused."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Public names, and words that mean something else there.
ALLOWED = {
    ("src/pytest_dtdispatch/comparing/scaling.py", "why_not"),
    ("src/pytest_dtdispatch/core/events.py", "place"),
    ("src/pytest_dtdispatch/core/verdicts.py", "what"),
    ("src/pytest_dtdispatch/rounds/sampler.py", "why_not"),
    ("src/pytest_dtdispatch/steps/model.py", "kept"),
}

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


def refused_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines and the refused words of a Python file."""
    if not SUSPECT.search(source):
        return
    prose = list(comments(source)) if PROSE.search(source) else []  # tokenizing takes most of the time
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            prose.append((node.lineno, node.value))
        else:
            yield from ((getattr(node, "lineno", 0), word) for word in refused_in_name(defined_name(node)))
    for line, text in prose:
        for found in PROSE.finditer(text):
            yield line + text.count("\n", 0, found.start()), " ".join(found.group().lower().split())


def test_words_are_standard_or_allowed() -> None:
    hits = [
        (path.relative_to(ROOT).as_posix(), line, word)
        for folder in ("src", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, word in refused_in(path.read_text(encoding="utf-8", errors="replace"))
    ]
    refused = [f"{file}:{line}: {word!r}" for file, line, word in hits if (file, word) not in ALLOWED]
    assert not refused, "see the words of docs/concepts.md"
    assert sorted((file, word) for file, _, word in hits) == sorted(ALLOWED), "each is there once"


# "~" is removed, so that this file has no hits.
SOURCE = '''
def told(place, in_place, what, taken_ns):
    """Return what i~s tol~d of a~new,
    o~f which there is no end, while it i~s no one's."""
    return "a~new"  # hel~d against it
'''


def test_prose_and_identifiers_are_searched() -> None:
    names = ["2: told", "2: what", "2: taken"]
    prose = ["5: hel~d against", "3: what i~s told", "3: a~new", "4: o~f which", "4: i~s no"]
    found = [f"{line}: {word}" for line, word in refused_in(SOURCE.replace("~", ""))]
    assert found == [text.replace("~", "") for text in (*names, *prose)]
