"""Run simulated developers against any URL: `python -m evals.developers --help`."""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from evals.developers import Address, Decision, Quirks, RunSettings, Tally, code_from, run
from infra import settings as configuration


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    serving = configuration.load().serving
    secret = serving.simulation_token
    token = secret.get_secret_value() if secret else ""
    result = argparse.ArgumentParser(
        prog="python -m evals.developers",
        description="Simulated developers: they write real code, ask for completions and send feedback as Continue does.",
    )
    add = result.add_argument
    add("--url", default=f"http://{serving.host}:{serving.port}/v1", help="Continue's apiBase (default %(default)s)")
    add(
        "--feedback-url",
        default=f"http://{serving.host}:{serving.feedback_port}/v1/continue/events",
        help="destination in Continue's data block (default %(default)s)",
    )
    add(
        "--token",
        default=token,
        help="bearer token with the role users (default: serving.simulation_token, which the local stack generates)",
    )
    add("--users", type=int, default=120, help="number of developers (default %(default)s)")
    add("--seed", type=int, default=0, help="seed of the tastes, the sessions and the chance events (default %(default)s)")
    add(
        "--code",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="write holes of the Python files below (default: the held-out packages)",
    )
    add("--requests", type=int, help="end after so many requests (default 500 without --seconds)")
    add("--seconds", type=float, help="end after so many seconds")
    add("--speed", type=float, default=20.0, help="how many times faster than people (default %(default)s)")
    add("--rate", type=float, default=0.0, help="maximum requests a second (default 0: limited by --concurrency only)")
    add(
        "--concurrency",
        type=int,
        default=16,
        help="developers who write at the same time, each in a file of their own (default %(default)s)",
    )
    add(
        "--silent",
        type=share,
        default=Quirks().silent_editors,
        help="share of developers whose editor sends Zed's requests and reports nothing (default %(default)s)",
    )
    add("--first-visit", type=int, default=0, help="number of the first session; continues an earlier run of this seed")
    add(
        "--version",
        default="",
        metavar="PIN",
        help="request this policy version (X-Tabloop-Version); needs a token with the role versions",
    )
    add("--report", type=Path, help="JSON file for the counts by user and version and some examples")
    add("--decisions", type=Path, help="JSON-lines file for every decision with the real text and what became of the place")
    return result


def share(text: str) -> float:
    """Return a number from 0 to 1. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to 1, got {text}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the developers and print the sums. Exit code 1 if no request was answered."""
    options = parser().parse_args(arguments)
    if options.requests is None and options.seconds is None:
        options.requests = 500
    model = configuration.load().model.name
    settings = RunSettings(
        address=Address(options.url.rstrip("/"), options.feedback_url, options.token, options.version, model),
        users=options.users,
        seed=options.seed,
        requests=options.requests,
        seconds=options.seconds,
        speed=options.speed,
        rate=options.rate,
        concurrency=options.concurrency,
        first_visit=options.first_visit,
        quirks=Quirks(silent_editors=options.silent),
    )
    failures: list[str] = []
    with ExitStack() as files:
        write = _writer(files, options.decisions)

        def on_decision(decision: Decision) -> None:
            if decision.outcome == "error" and len(failures) < 3:
                failures.append(decision.reason)
            write(decision)

        tally = asyncio.run(_run(settings, options.code, on_decision))
    if options.report:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(json.dumps(tally.as_json(), indent=1) + "\n")
    print(summary(tally))
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    if failures and not tally.total.answered:
        print(f"no request was answered by {options.url}; run `make status` to see whether the server is up", file=sys.stderr)
    return 0 if tally.total.answered else 1


async def _run(settings: RunSettings, directories: Sequence[Path], on_decision: Callable[[Decision], None]) -> Tally:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    progress = (lambda tally: print(summary(tally), file=sys.stderr)) if sys.stderr.isatty() else None
    return await run(settings, code_from(directories), stop=stop, progress=progress, on_decision=on_decision)


def _writer(files: ExitStack, path: Path | None) -> Callable[[Decision], None]:
    if path is None:
        return lambda decision: None
    path.parent.mkdir(parents=True, exist_ok=True)
    out = files.enter_context(path.open("w"))
    return lambda decision: print(json.dumps(asdict(decision)), file=out)


def summary(tally: Tally) -> str:
    """Return the sums in one line."""
    total = tally.total
    acceptance = f"{total.acceptance:.1%}" if total.answered else "-"
    return (
        f"{tally.seconds:6.1f} s  {total.requests} requests, {total.errors} errors, {total.cancelled} typed over, "
        f"{total.nothing} with nothing shown, {total.accepted} accepted, {total.rejected} rejected: "
        f"{acceptance} of the answered, {total.lost_events} events lost"
    )


if __name__ == "__main__":
    sys.exit(main())
