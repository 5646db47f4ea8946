"""The documentation: generated pages are complete, no link is dead, and MkDocs builds it strictly, to be read offline."""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from prometheus_client import generate_latest
from pydantic import BaseModel
from typer.core import TyperGroup
from typer.main import get_command

from evals.docs import site
from evals.docs.site import describe
from infra import cli
from infra.model.fim import FORMATS, REFUSED
from infra.records import Completion, Feedback, Record, ShadowCopy
from infra.settings import DEMO, ROOT, Settings, load
from serving.metrics import Metrics
from tests.evals.docs.links import anchors, dead_links, links

CONFIG = ROOT / "evals/docs/mkdocs.yml"
MKDOCS = ROOT / ".venv-docs/bin/python"
ROOT_PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
READMES = [*ROOT_PAGES, *sorted(ROOT.glob("*/README.md")), ROOT / "tasks/trainer/README.md"]
WORDS_OF_A_PARAGRAPH = 80
FROM_ELSEWHERE = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=\"?((?:https?:)?//[^\s\">]+)")


@pytest.fixture(scope="module")
def app() -> dict[str, Any]:
    return asyncio.run(describe(load(DEMO, {})))


@pytest.fixture(scope="module")
def pages(app: dict[str, Any]) -> dict[str, str]:
    return site.sources(ROOT, app, cli.app)


def field_paths(model: type[BaseModel], path: str = "") -> set[str]:
    """Return the path of every setting below a section, by the JSON schema: not by what makes the page."""
    schema = model.model_json_schema()
    found: set[str] = set()

    def walk(part: dict[str, Any], path: str) -> None:
        if "$ref" in part:
            part = schema["$defs"][part["$ref"].rpartition("/")[2]]
        for name, field in part.get("properties", {}).items():
            found.add(f"{path}.{name}".lstrip("."))
            walk(field, f"{path}.{name}")
        for each in (*part.get("anyOf", ()), *part.get("oneOf", ()), *part.get("allOf", ())):
            walk(each, path)
        for each in (*part.get("prefixItems", ()), *([part["items"]] if isinstance(part.get("items"), dict) else ())):
            walk(each, f"{path}[]")
        if isinstance(part.get("additionalProperties"), dict):
            walk(part["additionalProperties"], f"{path}.NAME")

    walk(schema, path)
    return found


def test_every_setting_has_its_row(pages: dict[str, str]) -> None:
    page = pages["operate/settings.md"]
    paths = field_paths(Settings)
    assert {"serving.port", "serving.tokens.NAME.sha256", "evaluate.sets[].name", "serving.engines[].url"} <= paths
    groups = {path for path in paths if any(other.startswith(f"{path}.") for other in paths)}
    assert [path for path in sorted(paths - groups) if f"`{path}` | " not in page] == []
    assert [path for path in sorted(groups) if f"`{path}`" not in page and f"## {path}\n" not in page] == []


def test_a_row_names_type_limits_default_and_what_is_shipped(pages: dict[str, str]) -> None:
    rows = dict(re.findall(r"`([\w.]+)` \| ([^|]+) \|", pages["operate/settings.md"]))
    assert rows["serving.sampling.max_tokens"].startswith("whole number, at least 1; `32`")
    assert rows["store.endpoint"] == "text; `http://127.0.0.1:9000`; production: empty"
    assert rows["serving.token"] == "secret; none"


def test_every_metric_has_its_row(pages: dict[str, str]) -> None:
    metrics = re.findall(r"^# HELP (\S+) (.*)$", generate_latest(Metrics().registry).decode(), re.MULTILINE)
    page = pages["operate/metrics.md"]
    assert len(metrics) > 20
    assert [name for name, _ in metrics if f"`{name}`" not in page and not name.endswith("_created")] == []


def test_every_route_and_field_of_a_body_is_on_the_page(pages: dict[str, str], app: dict[str, Any]) -> None:
    page, missing = pages["reference/http.md"], []
    for port in ("completions", "feedback"):
        for path, operations in app[port]["paths"].items():
            missing += [f"{method} {path}" for method in operations if f"{method.upper()} {path}" not in page]
            body = operations.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
            for form in body.get("schema", {}).get("anyOf", [body.get("schema", {})]):
                missing += [f"{path}: {name}" for name in form.get("properties", {}) if f"| `{name}` |" not in page]
    assert missing == []
    assert "`segments.prefix`" in page and "`data.completionId`" in page, "fields of objects in a body"


def fields_of(page: str, record: type[Record]) -> list[str]:
    section = page.partition(f"\n## {record.__name__}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| <a [^>]+></a>`(\w+)` \|", section, re.MULTILINE)


def test_every_field_of_every_record_has_its_row(pages: dict[str, str]) -> None:
    events = (Completion, Feedback, ShadowCopy)
    for record in Record.__subclasses__():
        if record.__module__.startswith("infra.records"):
            page = pages["reference/events.md" if record in events else "reference/records.md"]
            assert fields_of(page, record) == list(record.model_fields), record


def test_every_make_target_has_its_row(pages: dict[str, str]) -> None:
    phony = re.findall(r"^\.PHONY: ([a-z].*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = " ".join(phony).split()
    assert {"docs", "demo", "test"} <= set(targets)
    assert [name for name in targets if f"`make {name}`" not in pages["reference/commands.md"]] == []


def test_every_command_of_tabloop_has_its_row(pages: dict[str, str]) -> None:
    def names(group: TyperGroup, path: str = "") -> Iterator[str]:
        for name, command in group.commands.items():
            if isinstance(command, TyperGroup):
                yield from names(command, f"{path}{name} ")
            if not isinstance(command, TyperGroup) or command.invoke_without_command:
                yield f"{path}{name}"

    group = get_command(cli.app)
    assert isinstance(group, TyperGroup)
    section = pages["reference/commands.md"].partition("\n## make\n")[0]
    assert re.findall(r"^\| `([^`]+)` \| \S", section, re.MULTILINE) == sorted(names(group))


def test_the_page_of_capacity_is_what_the_command_prints(
    pages: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "defaults.toml").write_text("")
    for name in [name for name in os.environ if name.startswith("TABLOOP_")]:
        monkeypatch.delenv(name)  # settings of other tests' servers, which override a file
    monkeypatch.setenv("TABLOOP_SETTINGS", str(tmp_path / "defaults.toml"))
    page = pages["operate/capacity.md"]
    cells = [line.strip("| ").split(" | ") for line in page.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    sizes = (("100/day", 8), ("1000/day", 8), ("10000/day", 8), ("1M/day", 24), ("400M/day", 24))
    for column, (rate, hours) in enumerate(sizes, 1):
        assert cli.main(["plan", "capacity", "--requests", rate, "--hours", str(hours)]) == 0
        said = capsys.readouterr().out
        for part, *needs in cells[2:-1]:
            assert f"\n{part} " in said and f" {needs[column - 1]}\n" in said
        assert cells[-1][column].partition(":")[0] in said.partition("times what it may use")[0].splitlines()[-1]
    models = [line for line in page.partition("\n## Models on cards\n")[2].splitlines() if re.match(r"\| [\d.]+B \|", line)]
    assert [line.split(" | ")[:2] for line in models if "1.5B" in line] == [["| 1.5B", "H100"], ["| 1.5B", "H200"]]
    rates = [line.strip("| ").split(" | ")[4].split(", ")[0] for line in models]
    assert f"{rates[3]}/s each" in said, "of 1.5B on the card that the command takes"


def test_every_format_of_a_prompt_has_its_row_and_a_test_that_sends_it(pages: dict[str, str]) -> None:
    rows = [line.split(" | ") for line in pages["reference/formats.md"].splitlines() if line.startswith("| ")]
    named = {row[0].removeprefix("| "): row for row in rows}
    for each in FORMATS:
        _, recognized, split, stops, clients, tested = named[each.name]
        shown = [marker.strip().replace("|", "\\|") for marker in each.markers]
        assert f"`{shown[0]}`" in recognized and f"`{shown[1]}`" in split and clients == each.clients
        assert all(f"`{marker}`" in stops for marker in shown)
        assert (ROOT / tested.split("`")[1]).exists() and each.name in tested
    assert [each.name for each in REFUSED if named[each.name][2] != f"{each.setting} |"] == []


def test_no_link_of_a_page_is_dead(pages: dict[str, str]) -> None:
    folder = ROOT / "infra/docs"
    pictures = {str(file.relative_to(folder)) for file in (folder / "assets").rglob("*.*")}
    assert dead_links(pages, pictures) == []
    assert dead_links({"a.md": "![b](b.png)"}, pictures) != []


def test_a_dead_link_is_found() -> None:
    pages = {
        "a.md": "# A\n[b](how/b.md#here) [c](how/b.md#there) [d](d.md) [e](../e.md) `[x](y.md)` [f](https://host)",
        "how/b.md": "## Here\n[a](../a.md)",
    }
    dead = [line.split(": ")[1] for line in dead_links(pages)]
    assert dead == ["how/b.md#there", "d.md", "../e.md"]


@pytest.mark.parametrize("readme", READMES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_link_of_a_readme_is_dead(readme: Path) -> None:
    for link in links(readme.read_text()):
        target, _, anchor = link.partition("#")
        if not re.match(r"[a-z]+:", link):
            file = readme.parent / target if target else readme
            assert file.exists(), link
            assert not anchor or anchor in anchors(file.read_text()), link


def nav_of(entries: list[Any]) -> list[str]:
    flat: list[str] = []
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        flat += nav_of(value) if isinstance(value, list) else [value]
    return flat


def test_the_navigation_names_every_page_once(pages: dict[str, str]) -> None:
    config = yaml.safe_load(CONFIG.read_text())
    outside = [line.removeprefix("/") for line in config["not_in_nav"].split()]
    assert outside == ["measurements-history.md"]
    assert sorted([*nav_of(config["nav"]), *outside]) == sorted(pages)


DIAGRAMS = sorted((ROOT / "infra/docs/assets/diagrams").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("file", DIAGRAMS, ids=lambda file: file.stem)
def test_a_diagram_has_boxes_arrows_and_the_title_that_its_page_gives(file: Path) -> None:
    drawing = ElementTree.fromstring(file.read_text())
    title = drawing.find(f"{SVG}title")
    assert title is not None and title.text and drawing.get("aria-labelledby") == title.get("id")
    named = [
        alt
        for text in site.written(ROOT).values()
        for alt in re.findall(rf"!\[([^\]]+)\]\([./]*assets/diagrams/{file.name}\)", text)
    ]
    assert named and set(named) == {title.text}, "the page's text for screen readers"
    assert len(list(drawing.iter(f"{SVG}rect"))) > 3
    assert [path for path in drawing.iter(f"{SVG}path") if path.get("class") == "arrow"]


@pytest.mark.parametrize("file", DIAGRAMS, ids=lambda file: file.stem)
def test_the_boxes_of_a_diagram_do_not_overlap(file: Path) -> None:
    drawing = ElementTree.fromstring(file.read_text())
    width, height = map(float, drawing.attrib["viewBox"].split()[2:])
    boxes = [
        [float(box.attrib[key]) for key in ("x", "y", "width", "height")]
        for box in drawing.iter(f"{SVG}rect")
        if "x" in box.attrib
    ]
    for number, (x, y, w, h) in enumerate(boxes):
        assert 0 <= x <= x + w <= width and 0 <= y <= y + h <= height
        for x2, y2, w2, h2 in boxes[number + 1 :]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y, file


def paragraphs(page: str) -> list[str]:
    """Return the paragraphs and list entries of a page, without code, tables, headings and pictures."""
    text = re.sub(r"^```[\s\S]*?^```$|^ {4}.*$|^\|.*$|^#.*$|^!\[.*$", "", page, flags=re.MULTILINE)
    entries = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text)
    return [" ".join(entry.split()) for entry in entries if entry.strip()]


def test_code_tables_and_headings_are_no_paragraphs() -> None:
    page = "# A\n\nOne\ntwo.\n\n    code\n\n```sh\nmake\n\nmake\n```\n\n| a |\n| - |\n\n- b\n  c\n- d\n\n1. e\n"
    assert paragraphs(page) == ["One two.", "- b c", "- d", "1. e"]


@pytest.mark.parametrize("path", [path for path in site.written(ROOT) if path.startswith("how/")])
def test_the_paragraphs_of_how_it_works_are_short(path: str) -> None:
    assert [text for text in paragraphs(site.written(ROOT)[path]) if len(text.split()) > WORDS_OF_A_PARAGRAPH] == []


@pytest.mark.skipif(not MKDOCS.exists(), reason="`make docs` installs MkDocs into .venv-docs")
def test_the_site_builds_strictly_and_loads_nothing_from_another_host(pages: dict[str, str], tmp_path: Path) -> None:
    for path, text in pages.items():
        file = tmp_path / "pages" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    shutil.copytree(ROOT / "infra/docs/assets", tmp_path / "pages/assets")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {CONFIG}\ndocs_dir: {tmp_path / 'pages'}\nsite_dir: {tmp_path / 'out'}\n")
    command = [str(MKDOCS), "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    built = list((tmp_path / "out").rglob("*.html"))
    assert len(built) >= len(pages)
    assert [(file.name, found) for file in built for found in FROM_ELSEWHERE.findall(file.read_text())] == []
    styles = "".join(file.read_text() for file in (tmp_path / "out").rglob("*.css"))
    assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", styles)
