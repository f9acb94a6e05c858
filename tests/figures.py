"""`python -m tests.figures` draws the figures that pages show, docs/**/SOURCE_NAME.svg, anew. A test holds that they
are what is drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.figures import drawn
from tilewright.lab.drawing.catalogue import FIGURES

DOCS = Path(__file__).resolve().parent.parent / "docs"
KEYS = {key.replace("/", "_"): key for key in FIGURES}


def shown() -> Iterator[tuple[Path, str]]:
    """(file, key of the figure) for each picture of a page that is one of the catalogue."""
    found = {}
    for page in DOCS.rglob("*.md"):
        for path in re.findall(r"!\[[^\]]*\]\(([^)#?:]+)\.svg\)", page.read_text()):
            if (key := KEYS.get(Path(path).name)) is not None:
                found[(page.parent / f"{path}.svg").resolve()] = key
    yield from sorted(found.items())


def main() -> None:
    for path, key in shown():
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawn(key))
        print(path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
