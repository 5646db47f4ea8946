"""How a page must be for everyone: no error in the browser, no violation that axe-core finds, nothing wider than the window."""

import json
from collections.abc import Awaitable, Callable
from importlib.metadata import distribution
from typing import Any

WIDTHS, SCHEMES, HEIGHT = (1280, 390), ("light", "dark"), 900
Run = Callable[[str], Awaitable[Any]]
OF_LOOKS = ["color-contrast", "scrollable-region-focusable", "link-in-text-block", "meta-viewport"]
"""Rules of axe-core that depend on the width or on the colours; the others need one look."""
VIOLATIONS = """
axe.run(document, {resultTypes: ["violations"], RULES}).then(found => found.violations.map(
  each => each.id + ": " + each.nodes.map(node => node.html.slice(0, 200) + " " + node.failureSummary).join(" | ")))
"""


async def check(call: Callable[..., Awaitable[Any]], run: Run) -> None:
    """Check the page of a tab at each width and in each colour scheme.

    Args:
        call: calls a method of the debugging protocol.
        run: runs a script in the page and returns the value of its promise.
    """
    await run(distribution("axe-core-python").locate_file("axe_core_python/axe.min.js").read_text() + "; true")
    papers: set[str] = set()
    for width in WIDTHS:
        await call("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        for scheme in SCHEMES:
            await call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            wider = await run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wider <= 0, f"at {width} pixels the page is {wider} pixels wider than the window"
            rules = f"runOnly: {json.dumps(OF_LOOKS)}" if papers else ""
            violations = await run(VIOLATIONS.replace("RULES", rules))
            assert not violations, f"{width} pixels, {scheme}:\n" + "\n".join(violations)
            papers.add(await run("getComputedStyle(document.body).backgroundColor"))
    assert len(papers) == len(SCHEMES), f"light and dark look the same: {papers}"
