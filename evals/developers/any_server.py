"""Run simulated developers against any URL: `tabloop developers`."""

import asyncio
import json
import math
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from evals.developers import Decision, RunSettings, Tally, code_from, run
from evals.developers.aggregates import Collected, Times, aggregates


def run_and_report(settings: RunSettings, code: Sequence[Path], report: Path | None, decisions: Path | None) -> bool:
    """Run the developers and print the sums; return whether a request was answered.

    `code`: folders of the Python files that they type; empty: the held-out packages. `report`: JSON file for the counts by user
    and version, some examples, the digest of the developers' rates, and aggregates beside published ones. `decisions`: JSON-lines
    file for every decision with the real and the settled text.
    """
    failures, collected = list[str](), Collected()
    for file in filter(None, (report, decisions)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("a").close()  # what cannot be written is known before the run
    with decisions.open("w") if decisions else nullcontext() as out:

        def on_decision(decision: Decision) -> None:
            collected.add(decision.shown, decision.truth, decision.accepted, decision.reason, decision.settled)
            if decision.outcome == "error" and len(failures) < 3:
                failures.append(decision.reason)
            if out:
                print(json.dumps(asdict(decision)), file=out)

        tally = asyncio.run(_run(settings, code, on_decision))
    if report:
        found = [
            asdict(one) | {"simulated": None if math.isnan(one.simulated) else one.simulated}
            for one in aggregates(collected, Times.of(tally.total))
        ]
        body = {"rates": settings.quirks.digest, **tally.as_json(), "aggregates": found}
        report.write_text(json.dumps(body, indent=1) + "\n")
    print(summary(tally))
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    if failures and not tally.total.answered:
        url = settings.address.api_base
        print(f"no request was answered by {url}; `tabloop status` shows whether the server is up", file=sys.stderr)
    return bool(tally.total.answered)


async def _run(settings: RunSettings, directories: Sequence[Path], on_decision: Callable[[Decision], None]) -> Tally:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    progress = (lambda tally: print(summary(tally), file=sys.stderr)) if sys.stderr.isatty() else None
    return await run(settings, code_from(directories), stop=stop, progress=progress, on_decision=on_decision)


def summary(tally: Tally) -> str:
    """Return the sums in one line."""
    total = tally.total
    acceptance = f"{total.acceptance:.1%}" if total.answered else "-"
    return (
        f"{tally.seconds:6.1f} s  {total.requests} requests, {total.errors} errors, {total.cancelled} typed over, "
        f"{total.nothing} with nothing shown, {total.accepted} accepted, {total.rejected} rejected: "
        f"{acceptance} of the answered, {total.lost_events} events lost"
    )
