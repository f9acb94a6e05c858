"""The documentation site, built without a network: `python -m sphinx -W --keep-going -b html docs build/site`.

Pages are plain Markdown that GitHub shows, too. What this file adds: links to files of the repository, the rule that
every page is in exactly one toctree, and the versions in the sidebar.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections import Counter
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.logging import getLogger

DOCS = Path.cwd()           # where Sphinx runs this file
ROOT = DOCS.parent
LINK = re.compile(r"(?<!!)\[(?P<text>[^\[\]]*)\]\((?!https?:|mailto:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
logger = getLogger("tilewright")


def tags() -> list[str]:
    """Released versions, newest first: the tags v* of the checkout; none in an archive."""
    try:
        said = subprocess.run(["git", "tag", "--list", "v*", "--sort=-v:refname"], cwd=ROOT, capture_output=True,
                              text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return said.split()


project = "tilewright"
author = "the authors of tilewright"
release = version = re.search(r'__version__ = "(.*)"', (ROOT / "tilewright/__init__.py").read_text())[1]
extensions = ["myst_parser"]
exclude_patterns = ["README.md", "_*"]      # index.md includes README.md, which is GitHub's index
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
myst_heading_anchors = 4                    # by GitHub's rule, so that a link works in both places
myst_links_external_new_tab = True

html_theme = "furo"
html_title = "tilewright"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sidebars = {"**": ["sidebar/brand.html", "versions.html", "sidebar/search.html", "sidebar/scroll-start.html",
                        "sidebar/navigation.html", "sidebar/scroll-end.html"]}
templates_path = ["_templates"]
# A release is built into a folder of its name, beside the others': ../v1.2/index.html
html_context = {"release": release, "versions": tags()}
html_show_sphinx = html_show_copyright = False
smartquotes = False                         # --option is no dash
html_copy_source = False

_url = re.search(r'^"?(?:Repository|Source)[^=]*= *"(https://[^"]+?)/?"', (ROOT / "pyproject.toml").read_text(),
                 re.MULTILINE)
REPOSITORY = _url[1] if _url else None


def linked(text: str, page: Path) -> str:
    """Links that leave the pages lead to the repository; where it has no URL, to a copy of the file in the site."""
    def to(link: re.Match[str]) -> str:
        target = (page.parent / link["path"]).resolve()
        if target == DOCS / "README.md":
            return f"[{link['text']}]({'../' * (len(page.relative_to(DOCS).parts) - 1)}index.md)"
        if target.is_relative_to(DOCS) and target.suffix in source_suffix:
            return link[0]                      # a page: MyST finds it, and its anchor
        if not target.exists():
            logger.warning("%s links to %s, which does not exist", page.relative_to(ROOT), link["path"])
        if REPOSITORY:
            kind = "tree" if target.is_dir() else "blob"
            return f"[{link['text']}]({REPOSITORY}/{kind}/main/{target.relative_to(ROOT)}{link['anchor'] or ''})"
        return link["text"] if target.is_dir() else f"[{link['text']}](<path:{link['path']}>)"
    fences = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(to, part) for part in fences)


def notebook(text: str) -> str:
    """A notebook as Markdown: its cells, and the outputs that are stored in it."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = {kind: "".join(x) for kind, x in output.get("data", {"text/plain": output.get("text", "")}).items()}
            picture = data.get("image/svg+xml")
            if picture or "image/png" in data:
                kind, inside = ("svg+xml", base64.b64encode(picture.encode()).decode()) if picture else (
                    "png", data["image/png"].replace("\n", ""))
                title = re.search(r"<title>(.*?)</title>", picture or "<title>a plot</title>")
                parts.append(f'<p><img alt="{title[1]}" src="data:image/{kind};base64,{inside}"></p>')
            else:
                parts.append(f"```text\n{data['text/plain'].rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def read(app: Sphinx, name: str, content: list[str]) -> None:
    if app.env.doc2path(name).suffix == ".ipynb":
        content[0] = notebook(content[0])
    if name == "index":                         # a pattern of a toctree may have no page yet
        content[0] = "".join(line for line in content[0].splitlines(keepends=True)
                             if "*" not in line or any([*DOCS.glob(line.strip() + x)] for x in source_suffix))
    content[0] = linked(content[0], Path(app.env.doc2path(name)))


def included(app: Sphinx, path: Path, name: str, content: list[str]) -> None:
    if path.suffix == ".md":
        content[0] = linked(content[0], Path(app.env.doc2path(name)))


def in_one_toctree(app: Sphinx, env: BuildEnvironment) -> None:
    times = Counter(page for pages in env.toctree_includes.values() for page in pages)
    for page in sorted(env.found_docs - {"index"}):
        if times[page] != 1:
            logger.warning("docs/%s.md is in %d toctrees of docs/index.md, and must be in one: write its name under "
                           "the caption where a reader would look for it", page, times[page])


def setup(app: Sphinx) -> None:
    app.connect("source-read", read)
    app.connect("include-read", included)
    app.connect("env-check-consistency", in_one_toctree)
