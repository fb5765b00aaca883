"""`python -m bench.licences`: name, version and licence of every pinned package, from its own metadata.

Some pins are of packages that only other systems or other ways of installing bring along; those say "not installed"
unless they are on the path (pip install --no-deps --target FOLDER NAME==VERSION, then PYTHONPATH=FOLDER).
"""

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def pinned() -> dict[str, str]:
    """Package -> version, in the order of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if re.match(r"[A-Za-z0-9_.-]+==", line))


def licence(name: str) -> str:
    """What the package says of its licence: the SPDX expression, else the classifiers, else the licence field's first
    line, else the first line of the licence file that it carries; "not installed" where it is not."""
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return "not installed"
    told = package.metadata
    if told.get("License-Expression"):
        return told["License-Expression"]
    classified = [line.split("::")[-1].strip() for line in told.get_all("Classifier", []) if line.startswith("License")]
    classified = [line for line in classified if line != "OSI Approved"]
    text = (told.get("License") or "").strip().splitlines()
    if classified or text:
        return ", ".join(classified) or text[0][:80]
    files = [file for file in package.files or [] if file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING"))]
    lines = [line.strip() for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    named = [line for line in lines if re.search(r"Licen[cs]e\b", line)]
    return f"{named[0][:60]} (its file)" if named else "not said"


def table() -> str:
    """The Markdown that bench/licences.md holds."""
    rows = sorted(pinned().items(), key=lambda row: row[0].lower())
    lines = ["| package | version | licence |", "|---|---|---|",
             *(f"| {name} | {version} | {licence(name)} |" for name, version in rows)]
    lines += ["", f"{len(rows)} packages. Each is installed from its registry; none is shipped."]
    return "\n".join(lines) + "\n"


def main() -> None:
    text = table()
    Path(__file__).with_name("licences.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
