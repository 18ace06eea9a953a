"""Import hook that rewords all sentences of the package, so code that parses one behaves differently.

``python tests/sentence_hook.py pytest ...`` runs a module like ``python -m``, with the hook installed before
any module of the package is imported.
"""

from __future__ import annotations

import ast
import builtins
import random
import re
import runpy
import sys
from collections.abc import Sequence
from enum import Enum
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

PACKAGE = "pytest_dtdispatch"
REWORD = "_reword_sentence"  # builtin that rewords constants when they are formatted
SENTENCE = re.compile(r"[a-z][,;:.)]* | [(]?[a-z]", re.IGNORECASE)  # a space beside a word, or part of one
# Fields of formats, and flags: names.
FIXED = re.compile(r"\{[^{}]*\}|%\(\w+\)\w|--[\w-]+")
VOWELS, CONSONANTS = "aeiou", "bcdfghjklmnpqrstvwxz"
# Names with spaces, of other programs and in files.
NAMES = {
    **dict.fromkeys(("torch version", "torch build", "device name", "rank stat"), "keys of environments"),
    "async tensor": "an event of our traces",
    "model name": "a line of /proc/cpuinfo",
    "Torch-Compiled Region": "an event of torch's profiler",
    "TorchDynamo Cache Lookup": "an event of torch's profiler",
}


def reword(text: str, seed: str) -> str:
    """Replace lower-case letters by others of the same kind, so that equal texts at two lines differ."""
    letters, at, parts = random.Random(seed), 0, []

    def other(letter: str) -> str:
        kind = VOWELS if letter in VOWELS else CONSONANTS
        return kind[(kind.index(letter) + letters.randrange(1, len(kind))) % len(kind)]

    for fixed in [*FIXED.finditer(text), None]:
        end = fixed.start() if fixed else len(text)
        parts += [other(each) if each in VOWELS + CONSONANTS else each for each in text[at:end]]
        parts += [fixed[0]] if fixed else []
        at = fixed.end() if fixed else end
    return "".join(parts)


def reword_constant(value: object, seed: str) -> object:
    """Reword a constant that is formatted: the sentence then no longer contains the constant."""
    if isinstance(value, str) and not isinstance(value, Enum) and SENTENCE.search(value):
        return reword(value, seed)
    return value


class Rewording(ast.NodeTransformer):
    """Rewords constants, except docstrings, annotations, values of enums, regular expressions and NAMES.

    Args:
        module: name of the module.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._number = 0

    def _seed(self) -> str:
        self._number += 1
        return f"{self._module}:{self._number}"

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and node.value not in NAMES and SENTENCE.search(node.value):
            return ast.copy_location(ast.Constant(reword(node.value, self._seed())), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        for part in node.values:
            if isinstance(part, ast.Constant) and SENTENCE.search(str(part.value)):
                part.value = reword(str(part.value), self._seed())
            elif isinstance(part, ast.FormattedValue):
                part.value = self._reworded_field(self.visit(part.value))
        return node

    def _reworded_field(self, node: ast.expr) -> ast.expr:
        name = node.id if isinstance(node, ast.Name) else ""
        if not name.isupper():
            return node
        arguments: list[ast.expr] = [node, ast.Constant(self._seed())]
        call = ast.Call(ast.Name(REWORD, ast.Load()), arguments, [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return node if ast.unparse(node.func).startswith("re.") else self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        if any(isinstance(base, ast.Name) and base.id.endswith("Enum") for base in node.bases):
            node.body = [each if isinstance(each, ast.Assign) else self.visit(each) for each in node.body]
            return node
        return self.generic_visit(node)


class RewordingLoader(SourceFileLoader):
    """Compiles the reworded source of a module; no bytecode is read or written."""

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path), self.path)
        return compile(Rewording(fullname).visit(tree), self.path, "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    """Finds modules of the package."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            spec.loader = RewordingLoader(fullname, spec.origin)
        return spec


def install() -> None:
    """Reword all modules of the package imported afterwards."""
    vars(builtins)[REWORD] = reword_constant
    sys.meta_path.insert(0, Finder())


if __name__ == "__main__":
    del sys.argv[0]
    install()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
