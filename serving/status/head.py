"""The head of the status page: who serves since when, how well, what runs, and what does not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.pages import figures
from infra.pages.experiment_view import Progress, duration
from infra.records import Decision, Move, Rate
from infra.storage import cycle_progress, few
from infra.storage.loop_runs import Sign
from serving.status.data import StatusData
from serving.status.loop_state import signs


@dataclass(frozen=True)
class Measured:
    """The acceptance of a version at a time."""

    time: float
    rate: Rate
    where: str


def head(
    status: Mapping[str, Any], data: StatusData, shown: Decision | None, progress: Progress | None, now: float
) -> list[Sign]:
    """Return the lines of the head; the ones that somebody has to look after first.

    Args:
        status: what GET /admin/status answers.
        shown: the newest look at the test that the page shows.
        progress: of the running test.
    """
    lines = [
        *_champion(data, status["champion"], now),
        *_acceptance(data, shown, status["champion"]),
        _test(status, progress, now),
        *_loop(data, status["spool"], now),
        *_traffic(data),
        engines(status["slots"]),
    ]
    return sorted(lines, key=lambda line: line.ok)


def since(moves: Sequence[Move], champion: str) -> Move | None:
    """Return the move that made a version champion; None where the newest moves do not name it.

    Args:
        moves: the newest first.
    """
    for move in moves:
        if any(change.version == champion and change.after == "champion" != change.before for change in move.changes):
            return move
    return None


def acceptance_now(data: StatusData, shown: Decision | None, champion: str) -> Measured | None:
    """Return the newest acceptance of the champion: of a test's or a probation's look, or of a cycle's window."""
    found = []
    for decision in (shown, data.analysis):
        if decision:
            test = decision.experiment
            arms = {"champion": test.champion, "challenger": test.challenger}
            if test.stage.name == "anchor":
                arms["challenger"] = ""  # its figures are of all champions since the anchor
            rates = [rate for arm, rate in decision.verdict.acceptance.items() if arms[arm] == champion]
            found += [Measured(decision.decided, rate, "A/B test") for rate in rates]
    for cycle in data.cycles:
        rates = [s.acceptance for s in cycle.manifest.served if s.version == champion and s.answered and not s.project]
        found += [Measured(cycle.manifest.until, rate, f"window of {cycle.manifest.cycle}") for rate in rates]
    return max(found, key=lambda each: each.time, default=None)


def gain_over_base(data: StatusData, champion: str) -> figures.Gain | None:
    """Return the gain of the tests that lead from the base to the champion; None where one of them is not known, as after a
    promotion by hand."""
    won = {d.experiment.challenger: d for c in data.cycles if (d := c.decision) and d.verdict.verdict == "promote"}
    bases = {version.version for version in data.versions if not version.tags.get("cycle")}
    path: list[Decision] = []
    while champion in won and champion not in bases:
        path.append(won.pop(champion))
        champion = path[-1].experiment.champion
    return figures.summed([decision.verdict for decision in path]) if champion in bases else None


def _champion(data: StatusData, champion: str | None, now: float) -> Iterator[Sign]:
    if champion is None:
        yield Sign("champion", "no slot serves one" + ("; the common champion answers" if data.project else ""), False)
        return
    words = ""
    if move := since(data.moves, champion):
        words = f", since {figures.when(move.time)}, {duration(now - move.time)} ago: {move.kind.replace('_', ' ')}, by {move.by}"
    if data.is_on_common:
        words = ", the common one, until a version of the project is promoted"
    yield _well("champion", f"version {champion}{words}")


def _acceptance(data: StatusData, shown: Decision | None, champion: str | None) -> Iterator[Sign]:
    measured = acceptance_now(data, shown, champion or "")
    if champion is None or measured is None:
        yield _well("acceptance now", "not measured yet: neither a test nor a cycle's window has two users of this version")
        return
    words = f"{figures.share(measured.rate)} of {measured.rate.n} requests, {measured.where}, {figures.when(measured.time)}"
    yield _well("acceptance now", words)
    if all(version.version != champion or version.tags.get("cycle") for version in data.versions):
        gain = gain_over_base(data, champion)
        tests = "its test" if gain and gain.tests == 1 else f"the sum of {gain.tests if gain else 0} tests"
        known = f"{figures.points(gain.estimate, gain.low, gain.high)}, {tests}" if gain else "not measured by tests alone"
        yield _well("gain over the base", known)


def _test(status: Mapping[str, Any], progress: Progress | None, now: float) -> Sign:
    test = status["experiment"]
    if not test:
        return _well("A/B test", "none runs")
    words = f"version {test['challenger']} against {test['champion']}"
    served = bool(status["challenger"])
    lacks = "" if served else f"; no slot serves version {test['challenger']}"
    if progress is None:
        return Sign("A/B test", f"{words}: not looked at yet{lacks}", served)
    by = "by the clock" if progress.by_clock else "by requests"
    ends = f"planned end {figures.when(progress.ends)}, {by}, in {duration(progress.ends - now)}"
    return Sign("A/B test", f"{words}: {progress.counted}; {ends}{lacks}", served)


def _words_of(slot: Mapping[str, Any]) -> Iterator[str]:
    """Yield a slot's role, its version where its state does not name it, and its state."""
    yield slot["role"]
    if (version := slot["version"]) and (named := f"version {version}") not in slot["state"]:
        yield named
    yield slot["state"]


def engines(slots: Sequence[Mapping[str, Any]]) -> Sign:
    """Return which engines are up; the champion's must be."""
    up = [slot for slot in slots if slot["up"]]
    words = "; ".join(f"slot {slot['slot']}: {', '.join(_words_of(slot))}" for slot in slots)
    serves = any(slot["role"] == "champion" for slot in up)
    return Sign("engines", f"{len(up)} of {len(slots)} up: {words}", serves)


def _loop(data: StatusData, spool: Mapping[str, Any], now: float) -> Iterator[Sign]:
    """Yield the signs of the loop as `tabloop status` prints them; of a running cycle, with its stage."""
    for sign in signs(data, now, max(spool["oldest_seconds"], 0.0)):
        cycle = data.runs.get("cycle")
        if sign.name == "cycle" and data.progress and cycle and not cycle.ended and data.progress.run == cycle.run:
            yield Sign(sign.name, f"{sign.text}: {cycle_progress.described(data.progress, now)}", sign.ok)
        else:
            yield sign
    if spool["set_aside"]:
        yield Sign("spool", f"{spool['set_aside']} segments that could not be shipped whole, in bad/", False)


def _traffic(data: StatusData) -> Iterator[Sign]:
    """Yield what the traffic is too little for, when it will suffice, and what to change; no cycle where one began since."""
    begun = max((cycle.manifest.until for cycle in data.cycles), default=0.0)
    for each in data.too_little:
        if each.what == "cycle" and begun > each.time:
            continue
        yield Sign("traffic", f"too little for a {each.what}: {few.in_words(each)}", each.possible is not None)


def _well(name: str, text: str) -> Sign:
    return Sign(name, text, True)
