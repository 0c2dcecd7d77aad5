"""How to cite equipoise says what the package says."""

import tomllib
from pathlib import Path

import yaml

import equipoise

ROOT = Path(__file__).parent.parent


def test_citation_is_in_step_with_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["version"] == equipoise.__version__
    assert citation["license"] == project["license"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in project["authors"]]
    assert citation["title"].lower() == f"{project['name']}: {project['description']}".lower()


def test_every_cited_paper_names_a_loss():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for paper in citation["references"]:
        assert paper["title"] in readme
        assert hasattr(equipoise, paper["notes"].replace(",", " ").split()[0])
