"""missing_names.py [BEFORE]: list private names that this package uses and the installed torch lacks.

BEFORE is the output with an older torch: names in it are omitted.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.hidden_names import names_by_file

SOURCES = ("**/*.py", "**/*.pyi", "*.so", "lib/libtorch_python.*")


def missing(torch: Path) -> dict[str, list[str]]:
    """Return each name that no file of a folder contains, with the files of this package that use it."""
    words: set[bytes] = set()
    for path in {path for pattern in SOURCES for path in torch.glob(pattern)}:
        words.update(re.findall(rb"(?<!\w)_[a-zA-Z]\w*", path.read_bytes()))
    found: dict[str, list[str]] = {}
    for file, names in names_by_file().items():
        for name in names:
            if name.encode() not in words:
                found.setdefault(name, []).append(file)
    return found


def main() -> None:
    """Print a Markdown line for each name."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit("missing_names: torch is not installed")
    lines = {
        f"* `{name}`, used by torchapi/{', '.join(files)}"
        for name, files in missing(Path(spec.origin).parent).items()
    }
    if before := sys.argv[1:]:
        lines -= set(Path(before[0]).read_text(encoding="utf-8").splitlines())
        print(f"## Private names removed from torch {version('torch')}\n\n{'' if lines else 'None.'}")
    print("\n".join(sorted(lines)))


if __name__ == "__main__":
    main()
