"""What the repository says of itself outside the package: versions, groups of tools, links, forms, workflows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import tilewright
from tests.package.test_pages import LINK, headings

ROOT = Path(__file__).resolve().parents[2]
RELEASES = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def text(path: str) -> str:
    return (ROOT / path).read_text()


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def test_the_version_is_that_of_the_last_release_or_goes_beyond_it():
    """It stands in tilewright/__init__.py alone; a development version is larger than the last release."""
    (unreleased, none), (last, date), *_ = RELEASES
    assert (unreleased, none) == ("Unreleased", "")
    now = tilewright.__version__
    assert now == last or (".dev" in now and numbers(now) > numbers(last))
    citation = text("CITATION.cff")
    assert f"\nversion: {last}\n" in citation
    assert f'\ndate-released: "{date}"\n' in citation
    assert "version" in re.search(r"dynamic = \[(.*)\]", text("pyproject.toml"))[1]


def test_the_changelog_has_releases_with_dates_sections_and_links():
    changes = text("CHANGELOG.md")
    dated = RELEASES[1:]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) and date for version, date in dated)
    assert [numbers(version) for version, _ in dated] == sorted((numbers(x) for x, _ in dated), reverse=True)
    sections = re.findall(r"^### (.*)", changes, re.MULTILINE)
    assert {*sections} <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for release in changes.split("\n## ")[1:]:
        found = re.findall(r"^### (.*)", release, re.MULTILINE)
        assert len(found) == len({*found}), f"{release[:20]}: each kind of change once"
    assert {*re.findall(r"^\[(.+?)\]: https://", changes, re.MULTILINE)} == {version for version, _ in RELEASES}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib")
@pytest.mark.parametrize("name", ["test", "docs"])
def test_the_group_of_tools_is_the_extra_of_its_name(name):
    import tomllib

    project = tomllib.loads(text("pyproject.toml"))
    groups = project["dependency-groups"]

    def resolved(name: str) -> set[str]:
        return {y for x in groups[name] for y in (resolved(x["include-group"]) if isinstance(x, dict) else {x})}

    assert resolved(name) == {*project["project"]["optional-dependencies"][name]}
    assert resolved(name) < resolved("dev")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_of_the_first_level_lead_somewhere(page):
    for path, anchor in LINK.findall(re.sub(r"^```.*?^```", "", text(page), flags=re.DOTALL | re.MULTILINE)):
        target = ROOT / path if path else ROOT / page
        assert target.exists(), f"{page} links to {path}"
        assert not (anchor and target.suffix == ".md") or anchor in headings(target), f"{page} links to {path}{anchor}"


def test_what_contributing_names_is_there():
    """Files, folders and modules in backquotes, but for placeholders in capitals."""
    for name in re.findall(r"`((?:tilewright|tests|docs|bench|plans|kernels|ir|compiled|runtime)/[\w/.]*)`",
                           text("CONTRIBUTING.md")):
        assert re.search("[A-Z]{3}", name) or (ROOT / name).exists() or (ROOT / "tilewright" / name).exists(), name


def test_every_variable_that_names_a_program_or_a_place_is_in_the_security_page():
    said = {*re.findall(r"\b[A-Z_]{6,}\b", text("SECURITY.md"))}
    assert {x for x in re.findall(r"^\| `(\w+)`", text("docs/install.md"), re.MULTILINE)
            if x.endswith(("_DIR", "_DB", "_PTXAS", "_LLD", "_HOME", "_PATH"))} <= said


@pytest.mark.parametrize("form", ["wrong", "slow", "idea"])
def test_issue_forms_ask_for_the_doctor(form):
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(text(f".github/ISSUE_TEMPLATE/{form}.yml"))
    assert {"name", "description", "body"} <= found.keys()
    assert any("doctor --json" in x["attributes"]["label"] for x in found["body"])


def test_workflows_test_every_python_that_the_package_claims():
    claimed = re.findall(r"Python :: (3\.\d+)", text("pyproject.toml"))
    tested = re.search(r'python: \[(.*)\]', text(".github/workflows/tests.yml"))[1]
    assert re.findall(r"3\.\d+", tested) == claimed
    assert f'requires-python = ">={claimed[0]}"' in text("pyproject.toml")
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        assert "secrets." not in path.read_text()
        assert "\npermissions:\n  contents: read\n" in path.read_text()
