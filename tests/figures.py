"""`python -m tests.figures` draws the figures that pages show, docs/**/SOURCE_NAME.svg, and those in notebooks,
anew. A test holds that they are what is drawn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def in_notebooks() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Notebooks with pictures of the catalogue, as they are to be."""
    for path in sorted(DOCS.rglob("*.ipynb")):
        notebook = json.loads(path.read_text())
        for cell in notebook["cells"]:
            key = re.search(r'picture\("([^"]+)"', "".join(cell["source"]))
            for output in cell.get("outputs", ()):
                if key and "image/svg+xml" in output.get("data", ()):
                    old = output["data"]["image/svg+xml"]
                    text = drawn(key[1]) if "".join(old).endswith("\n") else drawn(key[1]).rstrip()
                    output["data"]["image/svg+xml"] = text.splitlines(keepends=True) if isinstance(old, list) else text
        yield path, notebook


def main() -> None:
    for path, key in shown():
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawn(key))
        print(path.relative_to(DOCS.parent))
    for path, notebook in in_notebooks():
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
