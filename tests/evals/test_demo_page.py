"""The demo's page: what it says first, how it chooses examples, its charts, and how a browser shows it."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from evals.demo import comparison, history
from evals.demo.page import EXAMPLES_RULE, completed, page
from evals.developers import PairedRun, Pin, Tally
from evals.developers.tally import Example
from infra.records import CycleOutcome, Look
from infra.registry.client import Aliases
from infra.settings import Settings
from infra.storage import looks
from infra.storage.store import to_parquet
from tasks.steps import transaction
from tests.evals.made_report import report
from tests.infra import page_checks
from tests.serving.fakes import MemoryStore, experiment
from tests.serving.status import shown
from tests.serving.status.browser import tab
from tests.tasks.made import sample
from tests.tasks.steps.test_transaction import FIELDS

SEEN = Example("u", "1", "a.py", "x = ", "", "value + 1", False, "wrong")


def _run(*places: tuple[Example, Example]) -> PairedRun:
    sides = tuple(Tally({}, list(side)) for side in zip(*places, strict=True))
    return PairedRun((Pin("1"), Pin("2")), (), sides, 0)


def test_examples_are_the_gains_and_losses_with_the_most_right_characters_and_each_place_once() -> None:
    def place(file: str, base: str, champion: str, winner: int, user: str = "u") -> tuple[Example, Example]:
        first, second = (replace(SEEN, file=file, shown=text, user=user) for text in (base, champion))
        return replace(first, accepted=winner == 1), replace(second, accepted=winner == 2)

    gains = [place(f"{n}.py", "no", "value + 1"[: n + 1], 2) for n in range(7)]
    twice = place("6.py", "none", "value +", 2, "another")
    losses = [place("l.py", "value", "v", 1), place("m.py", "value + 2", "", 1)]
    both = place("b.py", "value + 1", "value + 1", 0)
    found = comparison.changes(_run(*gains, twice, *losses, both))
    assert (found.gains, found.losses) == (8, 2)
    assert [(e.kind, e.file, e.right) for e in found.examples] == [
        *(("gain", f"{n}.py", n + 1) for n in (6, 5, 4, 3)),
        *(("loss", "m.py", 8), ("loss", "l.py", 5)),
    ]


def test_code_is_coloured_as_one_piece_and_stays_as_it_is() -> None:
    html = completed("a.py", 'def f(x):\n    """<one', ' two>"""\n    return 1')
    assert '<span class="k">def</span>' in html and '<ins><span class="s"> two' in html, "the text before decides"
    assert unescape(re.sub("<[^>]+>", "", html)) == 'def f(x):\n    """<one two>"""\n    return 1'
    assert completed("a.unknown", "a <b", "\n") == "a &lt;b<ins>▮</ins>"


def test_the_looks_of_each_test_are_read_with_its_verdict() -> None:
    store = MemoryStore()
    record = experiment().model_copy(update={"plan": shown.plan()})
    store.put("experiments/e1.json", record.model_dump_json().encode())
    for number, requests in enumerate((100, 400, 1600), 1):
        seen = Look(experiment="e1", number=number, time=1.0, stage="test", share=0.5, verdict=shown.verdict(requests))
        looks.append(store, seen)
    outcomes = [CycleOutcome(cycle=f"c{n}", result="registered", reason="", experiment="e1" * (n == 2)) for n in (1, 2)]
    state = history.LoopState(Aliases("1", "2", None, None), {outcome.cycle: outcome.model_dump() for outcome in outcomes}, {})
    (row,) = history.experiment_rows(store, state)
    assert (row.challenger, row.verdict) == ("2", "running")
    assert [sequence.title.split()[0] for sequence in row.sequences] == ["acceptance", "kept", "annoyances"]
    first = row.sequences[0]
    assert [point.x for point in first.points] == [100, 400, 1600] and first.end == shown.PLANNED
    assert list(first.margins) == [pytest.approx(-0.024)] and first.points[-1].value == 0.02


def test_a_cycle_has_the_figures_of_the_last_step_that_rewarded_actions_teach() -> None:
    store = MemoryStore()
    transaction.seal(store, "cycle-000001", FIELDS, to_parquet([sample()]), Settings())
    steps = [{"kl": 0.5, "clip_fraction": 0.125}, {"kl": None, "settled_loss": 2.0}]
    store.put_json("cycles/cycle-000001/training.json", {"steps": steps})
    outcome = CycleOutcome(cycle="cycle-000001", result="registered", reason="")
    state = history.LoopState(Aliases("1", "2", None, None), {outcome.cycle: outcome.model_dump()}, {})
    (row,) = history.cycle_rows(store, state)
    assert (row.kl, row.clip_fraction, [step.kl for step in row.steps]) == (0.5, 0.125, [0.5, None])


def test_the_result_stands_first_and_every_chart_has_its_words_and_numbers() -> None:
    html = page(report())
    text = re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", html.partition("<main>")[2]))
    assert text.startswith(" tabloop: demo report After 2 cycles in 10 minutes, version 3 beats the base at its best")
    assert "24.0 % of requests accepted against 20.0 %, +4.00 [+3.00, +5.00] points" in text
    charts = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]
    titles = [chart.findtext("title") or "" for chart in charts]
    kinds = (
        "Accepted at the same places",
        "Acceptance per request",
        "99.83 %",
        "Cross-entropy",
        "Norm of the gradient",
        "Mean reward",
    )
    for kind in (*kinds, "cycle-000002: 6400", "Reliability"):
        assert any(kind in title for title in titles), kind
    assert not any("KL" in title for title in titles), "a term without a weight is not drawn"
    (rewards,) = (chart for chart in charts if "Mean reward" in (chart.findtext("title") or ""))
    assert "12 values" in (rewards.findtext("desc") or ""), "rewards reached the weights in one of two cycles"
    assert all(chart.get("role") == "img" and chart.findtext("desc") for chart in charts)
    assert html.count("<figure>") == html.count('<details class="numbers"') == len(charts)
    words = " ".join(chart.get("aria-label") or "" for chart in charts)
    assert (
        "closing comparison, base v1, best: 20.00%, from 18.00% to 22.00%" in words
        and "challenger v3: 22.0 % [20.0, 24.0] of 2500" in words
    )
    assert EXAMPLES_RULE in text and "140 places" in text and re.search("Gain, 21 .* Loss, 12 ", text)
    assert not re.search(r"<script|<link|@import|url\(|src=", html), "nothing is loaded, nothing runs"


async def test_a_browser_shows_the_page_wide_and_narrow_light_and_dark(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(report()))
    async with tab(tmp_path / "profile") as opened:
        await opened.show(file.as_uri())
        await opened.run("for (const each of document.querySelectorAll('details')) each.open = true")
        await page_checks.check(opened.call, opened.run)
        assert opened.problems == []
