"""What a release promises: versions agree everywhere, bounds are the ones that are tested, and workflows do what they say."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import hatch_build
from suprank import __version__

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
PRE_COMMIT = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / ".github").glob("workflows/*.yml")}
REPOSITORY = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]


def pins(file):
    """Package → version, of a constraints file."""
    lines = [line for line in (ROOT / file).read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def runtime_requirements():
    """What `pip install suprank` with any extra for users needs."""
    extras = [lines for extra, lines in PROJECT["optional-dependencies"].items() if extra != "dev"]
    found = [Requirement(line) for lines in [PROJECT["dependencies"], *extras] for line in lines]
    return [one for one in found if one.name != "suprank"]


# Versions


def test_the_changelog_and_the_citation_have_this_version_and_one_date():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = dict(re.findall(r"^## \[([\d.]+)\] - (\d{4}-\d\d-\d\d)$", changelog, flags=re.MULTILINE))
    assert next(iter(released)) == __version__ == CITATION["version"]
    assert released[__version__] == str(CITATION["date-released"])
    assert changelog.index("## [Unreleased]") < changelog.index(f"## [{__version__}]")


def test_the_citation_is_valid_and_prefers_the_paper_of_the_readme():
    assert {"cff-version", "message", "title", "authors"} <= CITATION.keys()
    assert (CITATION["cff-version"], CITATION["type"]) == ("1.2.0", "software")
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION.get("repository-code", REPOSITORY) == REPOSITORY
    paper = CITATION["preferred-citation"]
    authors = " and ".join(f"{one['family-names']}, {one['given-names']}" for one in paper["authors"])
    bibtex = README.partition("@article")[2].replace(r"{\'e}", "é")
    assert f"title  = {{{paper['title']}}}" in bibtex
    assert f"author = {{{authors}}}" in bibtex
    assert f"year   = {{{paper['year']}}}" in bibtex


# Dependencies


def test_every_runtime_dependency_has_a_lower_bound_which_is_pinned_for_the_tests_of_the_lowest_versions():
    bounds = {}
    for one in runtime_requirements():
        (lowest,) = [part.version for part in one.specifier if part.operator == ">="]
        bounds.setdefault(canonicalize_name(one.name), set()).add(Version(lowest))
    assert bounds == {name: {Version(version)} for name, version in pins("constraints-lowest.txt").items()}


def test_the_pinned_versions_satisfy_every_requirement():
    pinned = pins("constraints.txt")
    unmet = [str(one) for one in runtime_requirements() if pinned[canonicalize_name(one.name)] not in one.specifier]
    assert unmet == []


def test_pre_commit_runs_the_versions_of_the_constraints():
    revisions = {repo["repo"].rpartition("/")[2]: repo.get("rev") for repo in PRE_COMMIT["repos"]}
    assert revisions["ruff-pre-commit"] == f"v{pins('constraints.txt')['ruff']}"
    hooks = {hook["id"]: hook for repo in PRE_COMMIT["repos"] for hook in repo["hooks"]}
    assert {"ruff-check", "ruff-format", "mypy"} <= hooks.keys()
    assert hooks["mypy"]["language"] == "system", "of the environment, so the version of the constraints too"


# Workflows


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_has_least_permissions_known_files_and_pinned_actions(name):
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"}
    assert all("uses" in job or {"runs-on", "steps"} <= job.keys() for job in workflow["jobs"].values())
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w/-]+@(v\d+|release/v\d+|[0-9a-f]{40})", step["uses"])
        for file in re.findall(r"\b(?:constraints[\w-]*\.txt|scripts/\w+\.py)", step.get("run", "")):
            assert (ROOT / file).is_file()


def test_the_tests_run_on_every_python_of_the_classifiers_and_beside_the_lowest_and_the_newest_versions():
    jobs = WORKFLOWS["tests"]["jobs"]
    prefix = "Programming Language :: Python :: "
    named = [line.removeprefix(prefix) for line in PROJECT["classifiers"] if line.startswith(prefix)]
    assert jobs["pinned"]["strategy"]["matrix"]["python"] == [one for one in named if re.fullmatch(r"3\.\d+", one)]
    assert jobs["pinned"]["strategy"]["matrix"]["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    runs = {name: " ".join(step.get("run", "") for step in job["steps"]) for name, job in jobs.items()}
    assert all("pytest" in run and "$CPU_TORCH" in run for run in runs.values())
    assert "constraints.txt" in runs["pinned"]
    assert "suprank demo" in runs["pinned"]
    assert "constraints-lowest.txt" in runs["lowest"]
    assert "constraint" not in runs["newest"]


def test_a_tag_is_published_without_a_token_and_only_after_the_checks():
    jobs = WORKFLOWS["release"]["jobs"]
    assert WORKFLOWS["release"][True] == {"push": {"tags": ["v*"]}}  # YAML reads `on` as true
    publish = jobs["publish"]
    assert set(publish["needs"]) == set(jobs) - {"publish"} == {"check", "lint", "tests"}
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"]["name"] == "pypi"
    assert publish["steps"][-1]["with"] == {"attestations": True}
    assert "scripts/check_release.py --publish --tag" in " ".join(step.get("run", "") for step in jobs["check"]["steps"])
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")


# Links


def test_links_of_the_readme_become_absolute():
    text = "![A b](docs/a.png) [d](docs/e.md#f), [g](https://h.i/j), [k](#l) [![m](docs/n.svg)](docs/o.md)"
    expected = (
        "![A b](https://r/raw/v1/docs/a.png) [d](https://r/blob/v1/docs/e.md#f), [g](https://h.i/j), [k](#l) "
        "[![m](https://r/raw/v1/docs/n.svg)](https://r/blob/v1/docs/o.md)"
    )
    assert hatch_build.absolute_links(text, "https://r", "v1") == expected


def test_every_link_of_the_readme_is_found():
    text = hatch_build.absolute_links(README, "https://r", "v1")
    assert re.findall(r"\]\((?!https://|#)", text) == []
    files = re.findall(r"https://r/(?:raw|blob)/v1/([^)#]+)", text)
    assert len(files) > 20
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_without_a_repository_there_are_no_project_urls_and_with_one_they_are_below_it():
    assert hatch_build.project_urls("", "", "v1") == {}
    urls = hatch_build.project_urls("https://r", "https://d", "v1")
    assert urls["Documentation"] == "https://d"
    assert {urls["Source"], urls["Changelog"]} == {"https://r", "https://r/blob/v1/CHANGELOG.md"}
