"""release.py VERSION [--tag]: set the version, date the changelog, build and test both packages.

--tag commits both files and tags the commit. If the build or a test fails, both files are restored.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NUMBER = re.compile(r"(\d+)\.(\d+)\.(\d+)")
FILES = ("pyproject.toml", "CHANGELOG.md")
UNRELEASED = "## Unreleased\n"


def git(*words: str) -> str:
    """Run git on this checkout."""
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def refusals(version: str, changelog: str) -> Iterator[str]:
    """Yield reasons why this version cannot be released from this checkout."""
    if changed := git("status", "--porcelain"):
        yield f"the checkout has changes: commit or stash them\n{changed.rstrip()}"
    if not NUMBER.fullmatch(version):
        yield f"{version} is not a version such as 1.2.3"
        return
    released = [*re.findall(r"^## (\S+)", changelog, re.MULTILINE), *git("tag", "--list", "v*").split()]
    numbers = [found for name in released if (found := NUMBER.fullmatch(name.removeprefix("v")))]
    highest = max(numbers, key=_order, default=None)
    if highest and _order(NUMBER.fullmatch(version)) <= _order(highest):
        yield f"{version} is not higher than {highest[0]}, which is released"
    _, is_there, rest = changelog.partition(UNRELEASED)
    if not is_there or "\n* " not in rest.partition("\n## ")[0]:
        yield "CHANGELOG.md has no entries under Unreleased"


def _order(version: re.Match[str] | None) -> tuple[int, ...]:
    return tuple(map(int, version.groups())) if version else ()


def release(version: str, dist: Path) -> None:
    """Write the version and the date, build and test; restore both files if that fails."""
    before = {name: (ROOT / name).read_text(encoding="utf-8") for name in FILES}
    dated = f"## {version} ({datetime.now(timezone.utc):%Y-%m-%d})\n"
    project = re.sub(
        r'^version = ".*"$', f'version = "{version}"', before[FILES[0]], count=1, flags=re.MULTILINE
    )
    shutil.rmtree(dist, ignore_errors=True)  # of an earlier attempt
    try:
        (ROOT / FILES[0]).write_text(project, encoding="utf-8")
        (ROOT / FILES[1]).write_text(before[FILES[1]].replace(UNRELEASED, dated, 1), encoding="utf-8")
        python = {"PYTHON": os.environ.get("PYTHON", sys.executable)}
        subprocess.run([ROOT / "ci" / "release.sh", dist], check=True, env={**os.environ, **python})
    except BaseException:
        for name, text in before.items():
            (ROOT / name).write_text(text, encoding="utf-8")
        raise


def left_to_do(version: str, is_tagged: bool) -> Iterator[str]:
    """Yield the remaining manual steps, with those that are necessary only once."""
    if not is_tagged:
        yield f'git commit --all --message "Release {version}" && git tag v{version}'
    yield f"git push origin HEAD v{version}: release.yml builds the tag once more, and publishes it"
    pages = {str(page.relative_to(ROOT)): page for page in (ROOT / "README.md", *ROOT.glob("docs/*.md"))}
    if names := [
        name for name, page in pages.items() if page.exists() and "OWNER/" in page.read_text("utf-8")
    ]:
        yield f"once: write the owner of the repository in place of OWNER in {', '.join(names)}"
    yield "once: on the index, make release.yml, environment pypi, the trusted publisher of pytest-dtdispatch"


def main(words: Sequence[str] | None = None) -> None:
    """Release, or exit with the reasons against it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("version", metavar="VERSION", help="such as 1.2.3, higher than any before")
    parser.add_argument("--tag", action="store_true", help="commit both files, and tag the commit")
    options = parser.parse_args(words)
    version = options.version
    if why := list(refusals(version, (ROOT / FILES[1]).read_text(encoding="utf-8"))):
        sys.exit("\n".join(f"release: {each}" for each in why))
    dist = ROOT / "dist" / version
    try:
        release(version, dist)
        if options.tag:
            git("commit", "--quiet", "--message", f"Release {version}", "--", *FILES)
            git("tag", f"v{version}")
    except subprocess.CalledProcessError:
        sys.exit("release: stopped: see above")
    print(f"\n{version} is built and tested, in {dist.relative_to(ROOT)}. Left to do:")
    print("\n".join(f"* {each}" for each in left_to_do(version, options.tag)))


if __name__ == "__main__":
    main()
