"""Make pictures of the five screens of a finished demo: `tabloop screens`

The terminal's last screen, the report, the status page, and the pages of the champion in MLflow and of the newest cycle's run in
Prefect. It needs var/demo/report.json, the running stack and a browser, and writes PNG files, for light or for dark.
"""

import base64
import io
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from evals.demo import browser
from evals.demo import report as report_
from evals.demo.browser import Tab
from evals.demo.page import model_path
from evals.demo.record import Report
from infra import settings as configuration
from infra.settings import Settings
from infra.stack.addresses import login_links
from infra.stack.parts import site_of
from infra.storage import cycles
from infra.storage.store import ObjectStore

DEMO = Path("var/demo")
WIDTH, HEIGHT = 1280, 1000
COLUMNS = 80
"""Width of the terminal."""


@dataclass(frozen=True)
class Screen:
    """A page to take a picture of."""

    name: str
    url: str
    shown: str  # JavaScript that is true once the page shows what it is for
    login: str = ""  # a link that logs the browser in before; empty: none is needed


def screens(settings: Settings, found: Report, run: str, folder: Path) -> list[Screen]:
    """Return the five screens.

    `found`: the demo's report; `run`: id of the flow run in Prefect; `folder`: where the terminal's screen is written.
    """
    terminal = folder / "terminal.html"
    terminal.write_text(terminal_page(found))
    links, model = login_links(settings), settings.registry.model
    mlflow, prefect = (site_of(links[part]) for part in ("mlflow", "prefect"))
    version = found.champion_version
    text = "document.body.innerText.includes"
    return [
        Screen("terminal", terminal.as_uri(), "document.querySelector('svg') !== null"),
        Screen("report", (configuration.ROOT / DEMO / "report.html").as_uri(), f"{text}('demo report')"),
        Screen("status", f"{site_of(links['serving'])}/", "document.querySelector('#test') !== null", links["serving"]),
        Screen("mlflow", f"{mlflow}{model_path(model, version)}", f"{text}('Version {version}')", links["mlflow"]),
        Screen("prefect", f"{prefect}/runs/flow-run/{run}", f"{text}('Logs')", links["prefect"]),
    ]


def terminal_page(found: Report) -> str:
    """Return the last screen of the terminal as a page with one SVG image, which loads no font."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(report_.LastScreen(found, report_.files(DEMO), found.addresses), crop=False)
    svg = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="make demo"), flags=re.DOTALL)
    return f'<!doctype html><meta charset="utf-8"><style>body{{margin:0}}svg{{width:100%;height:auto}}</style>{svg}'


def take(tab: Tab, screen: Screen, scheme: str, out: Path, width: int = WIDTH) -> Path:
    """Show a screen in a tab of a width in pixels and write its picture; return the file.

    Raises TimeoutError where the page does not show what it is for.
    """
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT, deviceScaleFactor=1, mobile=False)
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    if screen.login:
        tab.call("Page.navigate", url=screen.login)
        tab.until(f"location.href.startsWith({site_of(screen.login)!r}) && !location.href.includes('login')")
    tab.call("Page.navigate", url=screen.url)
    tab.until(f"document.readyState === 'complete' && ({screen.shown})")
    # Applications in a page draw what they have fetched in the next frames.
    tab.evaluate("new Promise(done => setTimeout(done, 2000))")
    height = min(HEIGHT, tab.evaluate("Math.ceil(document.documentElement.getBoundingClientRect().height)") or HEIGHT)
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    file = out / f"{screen.name}.png"
    file.write_bytes(base64.b64decode(tab.call("Page.captureScreenshot", format="png", clip=clip)["data"]))
    return file


def newest_run(store: ObjectStore) -> str:
    """Return the id of the flow run that sealed the newest cycle. Raises ValueError if no cycle names one."""
    for cycle in reversed(cycles.sealed(cycles.index(store))):
        if run := cycles.manifest_of(store, cycle).run:
            return run
    raise ValueError(f"{store.uri('cycles/')}: no cycle with a flow run; run `tabloop demo` first")


class NoScreens(ValueError):
    """What the pictures need is missing; the message says what to do."""


def run(settings: Settings, scheme: Literal["light", "dark"], out: Path, width: int = WIDTH) -> Iterator[Path]:
    """Write the pictures into a folder, of a width in pixels, and yield their files.

    Raises NoScreens where there is no finished demo, or no browser.
    """
    written, program = configuration.ROOT / DEMO / "report.json", browser.find()
    if not written.exists():
        raise NoScreens(f"{written}: not found; run `tabloop demo` first, and let the stack run")
    if program is None:
        raise NoScreens(f"no browser is installed: expected one of {', '.join(browser.PROGRAMS)} on the PATH")
    found = Report.model_validate_json(written.read_text())
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shown = screens(settings, found, newest_run(ObjectStore.connect(settings.store)), Path(folder))
        with browser.running(program, Path(folder) / "profile") as running, running.tab(running.open("about:blank")) as tab:
            for screen in shown:
                yield take(tab, screen, scheme, out, width)
