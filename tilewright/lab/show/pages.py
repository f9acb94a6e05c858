"""One HTML file of records, plans and drawings: no network, no library, data compressed."""
from __future__ import annotations

import base64
import html
import json
import zlib
from pathlib import Path
from typing import Any

PARTS = Path(__file__).parent / "page"
SCRIPTS = ("model.js", "pens.js", "levels.js", "banks.js", "time.js", "source.js", "strip.js", "plans.js", "main.js")


def page(data: dict[str, Any], title: str) -> str:
    """The page, as text."""
    packed = base64.b64encode(zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 9)).decode()
    parts = {"title": html.escape(title), "css": (PARTS / "page.css").read_text().strip(),
             "js": "\n".join((PARTS / name).read_text() for name in SCRIPTS).strip(), "data": packed}
    text = (PARTS / "page.html").read_text()
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    return text


def data_of(page: str) -> Any:
    """What is in a page."""
    packed = page.partition('<script id="data" type="application/octet-stream">')[2].partition("</script>")[0]
    return json.loads(zlib.decompress(base64.b64decode(packed)))
