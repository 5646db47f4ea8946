"""What stands where a completion would have stood: mined from later requests, reported by the editor, counted once."""

import random
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from infra.model.fim import END as END_TOKEN
from infra.model.fim import Renderer
from infra.records import Completion, Feedback, Sample
from infra.settings import ROOT, Settings
from infra.settings.schema import Collect, Hindsight
from infra.storage.store import from_parquet, sha256
from tasks.labels import context_lines, explain, hindsight, samples
from tasks.labels.accounting import RequestAccounting, WindowCounts, classify
from tasks.labels.collect import collect
from tasks.labels.context_lines import without_context_lines
from tasks.labels.partitions import HOUR, plan_window
from tasks.labels.pipeline import join_partition, merge_partitions
from tasks.labels.samples import SettledTokens
from tasks.labels.window import Window
from tasks.steps import transaction
from tasks.validation.quarantine import ValidationEvidence
from tests.tasks import rows
from tests.tasks.labels.test_accounting import LINEAGE
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, completion, feedback

HEAD = "import os\n\n\ndef total(items: list[int]) -> int:\n    result = 0\n"
BEGIN = HEAD + "    for item in items:\n        result += item\n    value = "
END = "\n    return result + value\n\n\nclass Something:\n    pass\n"
TEXT = "foo(bar)"
LIMITS = Collect(max_user_share=1.0, max_staleness=1)


def asked(id: str = "c", at: float = 0.0, written: str = "", rest: str = "", **fields: Any) -> Completion:
    """A request `at` seconds in, at the place with `written` before the cursor and `rest` behind it."""
    places = {"prefix": BEGIN + written, "suffix": rest + END}
    return completion(id, **{"time": NOW + at, "user": "u", **places, **fields})


def mined(*requests: Completion, **fields: Any) -> dict[str, Any]:
    """The settled text of the first request."""
    served = rows.frame(requests, Completion)
    (found,) = hindsight.settle(served, pl.Series([requests[0].id]), Hindsight(**fields)).to_dicts()
    return found


def text_of(*requests: Completion, **fields: Any) -> tuple[str | None, bool | None, str]:
    found = mined(*requests, **fields)
    return found["settled"], found["settled_whole"], found["unsettled"]


def accounted(served: list[Completion], sent: list[Feedback] | None = None, **fields: Any) -> RequestAccounting:
    return rows.account(served, sent or [], limits=LIMITS, lineage=LINEAGE, until=NOW + 1000, **fields)


def row(found: RequestAccounting, id: str = "c") -> dict[str, Any]:
    return found.classified.row(by_predicate=pl.col("id") == id, named=True)


BEHIND = f"{TEXT}\n    return result + value\n\n\nclass Something:\n    "


def behind(id: str = "d", at: float = 20.0, text: str = TEXT, **fields: Any) -> Completion:
    """A request behind the place, where `text` stands."""
    shown = {"prefix": BEGIN + text + "\n    return result + value\n\n\nclass Something:\n    ", "suffix": "pass\n"}
    return completion(id, **{"time": NOW + at, **shown, **fields})


def test_the_text_up_to_the_suffix_is_whole() -> None:
    assert mined(asked(), behind()) == {
        "id": "c", "settled": TEXT, "settled_whole": True, "settled_by": "d", "unsettled": "", "written": len(TEXT),
        "stands": TEXT,
    }  # fmt: skip


def test_without_the_end_the_line_of_the_later_cursor_is_cut() -> None:
    assert text_of(asked(), asked("d", 20, "foo(1)\n    other = 2\n    mo")) == ("foo(1)\n    other = 2\n", False, "")


@pytest.mark.parametrize(
    ("later", "why"),
    [
        ([], "not_shown"),
        ([behind(at=9.9)], "not_shown"),
        ([behind(at=300.1)], "not_shown"),
        ([behind(user="v")], "not_shown"),
        ([behind(project="q")], "not_shown"),
        ([behind(file="other")], "not_shown"),
        ([asked("d", 20, "foo(b")], "still_typed"),
        ([asked("d", 20, TEXT)], "still_typed"),
        ([behind(text="")], "empty"),
        ([behind(redacted=True)], "redacted"),
        ([behind(opted_out=True)], "opted_out"),
        ([behind(text="x\n" * 700)], "pasted"),
        ([behind(prefix=BEGIN + TEXT + "\n" + BEGIN + "1", suffix=END)], "ambiguous"),
        ([behind(at=11), behind("e", 20, prefix=BEGIN[:-3] + "+= foo(bar)\n    return result + value\n\n")], "prefix_changed"),
        ([behind(prefix=BEGIN + TEXT + "\n    return other\n\n\nclass Something:\n    ", suffix="pass\n")], "suffix_changed"),
        ([asked("k", 12, "foo(b"), behind(at=15.0)], "still_typed"),
        ([behind(), asked("e", 200, "foo(1")], "still_typed"),
        ([completion("d", time=NOW + 20, prefix=BEGIN[:40], suffix=BEGIN[40:] + TEXT)], "not_shown"),
    ],
)
def test_where_the_stream_does_not_show_it_there_is_none(later: list[Completion], why: str) -> None:
    first = asked(file="this") if later and later[0].file else asked()
    assert text_of(first, *later) == (None, None, why)


@pytest.mark.parametrize(("fields", "why"), [({"redacted": True}, "redacted"), ({"opted_out": True}, "opted_out")])
def test_what_is_hidden_has_none(fields: dict[str, Any], why: str) -> None:
    assert text_of(asked(**fields), behind()) == (None, None, why)


def test_a_changed_line_above_the_cursor_differs_from_a_place_out_of_sight() -> None:
    elsewhere = "\n".join(f"line_{n} = {n}" for n in range(9)) + "\n"
    assert text_of(asked(), behind(), behind("e", 40, prefix=elsewhere))[0] == TEXT, "the later window shows other lines"
    above = completion("e", time=NOW + 40, user="u", prefix=HEAD, suffix="    changed = 1\n" + END)
    assert text_of(asked(), behind(), above)[0] == TEXT, "the later suffix may be cut above the place"
    twice = BEGIN[:-8] + "other = 1\n" + BEGIN[:-8] + "other = 2\n"
    assert text_of(asked(), behind(), behind("e", 40, prefix=twice))[0] == TEXT, "the lines above stand twice"


def test_a_short_prefix_needs_the_same_file() -> None:
    later: dict[str, Any] = {"prefix": "x = 1\n    return result + value\n\n", "suffix": ""}
    assert text_of(asked(prefix="x = "), behind(**later))[2] == "short_prefix"
    assert text_of(asked(prefix="x = ", file="f"), behind(**later))[2] == "not_shown"
    assert text_of(asked(prefix="x = ", file="f"), behind(**later, file="f")) == ("1", True, "")


def test_the_windows_of_a_request_move() -> None:
    assert text_of(asked(), behind(prefix=behind().prefix[30:]))[0] == TEXT
    above = completion("d", time=NOW + 20, prefix=BEGIN[:10], suffix=BEGIN[10:] + TEXT + END)
    assert text_of(asked(), above) == (TEXT, True, "")


def test_the_later_text_counts_and_an_unchanged_one_stays() -> None:
    rewritten = behind("e", 100, text="sum(items)")
    assert mined(asked(), behind(), rewritten)["settled_by"] == "e"
    assert text_of(asked(), behind(), rewritten)[0] == "sum(items)"
    assert text_of(asked(), behind(), asked("e", 200, TEXT)) == (TEXT, True, "")


def test_lines_that_changed_just_before_are_cut_off() -> None:
    first, second = asked("k", 15, "foo(1)\n    sec"), asked("d", 20, "foo(1)\n    second\n    ")
    assert text_of(asked(), first, second) == ("foo(1)\n", False, "")
    assert text_of(asked(), first, asked("d", 26, "foo(1)\n    second\n    ")) == ("foo(1)\n    second\n", False, "")


def test_long_text_that_was_typed_is_cut_at_a_line() -> None:
    lines = "".join(f"line{n:03d} = {n:03d}\n" for n in range(60))
    typed = [asked(f"k{n}", 10 * n, lines[: 150 * n]) for n in range(1, 6)]
    found = text_of(asked(), *typed, asked("d", 100, lines))
    assert found == (lines[: lines.rfind("\n", 0, 512) + 1], False, "")
    assert text_of(asked(), asked("d", 100, lines)) == (None, None, "pasted")


def test_brackets_that_the_editor_closed_end_the_place() -> None:
    within = asked(prefix=BEGIN + "call(", suffix=")" + END)
    assert text_of(within, behind(text="call(a, (b))")) == ("a, (b)", True, "")
    assert text_of(within, behind(text="call(a) + 1")) == (None, None, "suffix_changed")


def here(**fields: Any) -> Feedback:
    return feedback(**{"prefix": BEGIN, "suffix": END, **fields})


@pytest.mark.parametrize(
    ("sent", "text", "outcome", "kept"),
    [
        ([here()], TEXT, "accepted", 8),
        ([here()], "foo(baz)", "accepted", 5),
        ([here(outcome="rejected")], TEXT, "rejected", 8),
        ([here(outcome="shown")], TEXT, "unjudged", 8),
        ([here(cache_hit=True)], TEXT, "unjudged", 8),
        ([], "other", "unjudged", 0),
    ],
)
def test_judged_or_not_the_settled_text_stays_with_it(sent: list[Feedback], text: str, outcome: str, kept: int) -> None:
    found = row(accounted([asked(), behind(text=text)], sent))
    assert (found["bucket"], found["outcome"], found["kept_characters"], found["settled"]) == ("trained", outcome, kept, text)
    assert (found["tokens"], found["shown_characters"]) == (9, 8)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"withheld": True}, 9),
        ({"finish_reason": "disconnected"}, 8),
        ({"mixed": True}, 0),
        ({"top_p": 0.9}, 0),
        ({"finish_reason": "error"}, 0),
        ({"policy_version": "3"}, 0),
        ({"text": "", "finish_reason": "disconnected"}, 0),
    ],
)
def test_sampled_tokens_count_only_where_they_can_be_corrected(fields: dict[str, Any], tokens: int) -> None:
    found = row(accounted([asked(**fields), behind()]))
    assert (found["bucket"], found["outcome"], found["tokens"], found["logprobs"]) == ("trained", "unjudged", tokens, tokens)


@pytest.mark.parametrize(
    ("fields", "bucket"),
    [
        ({"pinned": True}, "pinned"),
        ({"opted_out": True}, "opted_out"),
        ({"redacted": True}, "quarantined"),
        ({"policy_version": "77"}, "quarantined"),
        ({"prompt_token_ids": []}, "unlabelled"),
        ({"time": NOW + 1001}, "waiting"),
    ],
)
def test_settled_text_moves_no_request_out_of_these_buckets(fields: dict[str, Any], bucket: str) -> None:
    later = behind(at=fields.get("time", NOW) - NOW + 20)
    assert row(accounted([asked(**fields), later]))["bucket"] == bucket


def test_a_reported_text_wins_and_the_latest_report_counts() -> None:
    sent = [here(outcome="rejected"), here(id="g", time=NOW + 30, outcome="shown", completion_id="c", settled="foo(2)")]
    found = row(accounted([asked(), behind()], sent))
    assert (found["settled"], found["settled_by"], found["settled_whole"], found["kept_characters"]) == (
        "foo(2)",
        "feedback",
        True,
        5,
    )
    sent.append(here(id="h", time=NOW + 40, outcome="shown", completion_id="c", settled=TEXT))
    assert row(accounted([asked(), behind()], sent))["kept_characters"] == 8


def test_an_editor_without_consent_reports_numbers_and_no_text_is_taken() -> None:
    sent = here(outcome="shown", completion_id="c", settled_kept=3, settled_total=9)
    found = row(accounted([asked(), behind()], [sent]))
    assert (found["outcome"], found["kept_characters"], found["settled"], found["unsettled"]) == (
        "unjudged",
        3,
        None,
        "numbers_only",
    )


@pytest.mark.parametrize("fields", [{"opted_out": True}, {"redacted": True}])
def test_a_report_on_what_is_hidden_is_dropped(fields: dict[str, Any]) -> None:
    found = row(accounted([asked(**fields)], [here(completion_id="c", prefix="", suffix="", shown="", settled=TEXT)]))
    assert (found["settled"], found["kept_characters"]) == (None, None)


def test_a_reported_paste_keeps_nothing_and_teaches_nothing() -> None:
    found = row(accounted([asked()], [here(settled=TEXT + "x" * 513)]))
    assert (found["settled"], found["kept_characters"], found["unsettled"]) == (None, 0, "pasted")


def test_switched_off_it_changes_nothing() -> None:
    off = LIMITS.model_copy(update={"hindsight": Hindsight(on=False)})
    found = rows.account([asked(), behind()], [here(settled="x")], limits=off, lineage=LINEAGE)
    assert (row(found)["settled"], row(found)["kept_characters"], row(found, "d")["bucket"]) == (None, None, "unlabelled")


def test_a_label_that_comes_after_its_cycle_reaches_the_next_one_once() -> None:
    store, registry = MemoryStore(), MemoryRegistry(v1={})
    registry.aliases["champion"] = "1"
    limits = Settings(collect=Collect(settle_seconds=5, join_seconds=60, max_user_share=1.0))

    def cycle(name: str, now: float) -> dict[str, str]:
        found = collect(store, registry.client, limits, now)
        body = rows.batch(store, found)
        explain.write(store, name, sha256([body]), found.accounting)
        transaction.seal(store, name, transaction.manifest_fields(found, ValidationEvidence(), now), body, limits)
        version = str(len(registry.versions) + 1)
        registry.versions[version] = {"parent": registry.aliases["champion"], "cycle": name}
        registry.aliases["champion"] = version
        assert sum(found.accounting.buckets.values()) == found.accounting.requests
        return dict(found.accounting.classified.select("id", pl.col("bucket").cast(pl.String)).iter_rows())

    judged = asked("judged", 1, prefix="# another file\n" + BEGIN.replace("total", "sum_of"))
    rows.put(store, [asked(), judged], [here(id="f", prefix=judged.prefix)], name="a")
    assert cycle("cycle-000001", NOW + 10) == {"c": "unlabelled", "judged": "trained"}
    rows.put(store, [behind()], [], name="b")
    # What settled late at the other place, too: an unnamed file that shows the same lines may be the same one.
    assert cycle("cycle-000002", NOW + 30) == {"c": "trained", "judged": "trained", "d": "unlabelled"}
    assert cycle("cycle-000003", NOW + 50) == {}
    assert [fate.bucket for fate in explain.explain(store, "c")] == ["trained", "unlabelled"]
    assert "settled text: by d" in str(next(explain.explain(store, "c")))


def test_the_settled_text_of_a_judged_request_reaches_the_next_cycle_once_and_alone() -> None:
    store, registry = MemoryStore(), MemoryRegistry(v1={})
    registry.aliases["champion"] = "1"
    limits = Settings(collect=Collect(settle_seconds=5, join_seconds=60, max_user_share=1.0))

    def cycle(name: str, now: float) -> list[tuple[str, str, str, int, int]]:
        found = collect(store, registry.client, limits, now)
        chosen = context_lines.with_context_lines(store, found.plan.partitions, found.accounting.samples, 3)
        body = rows.batch(store, found)
        explain.write(store, name, sha256([body]), found.accounting)
        transaction.seal(store, name, transaction.manifest_fields(found, ValidationEvidence(), now), body, limits)
        version = str(len(registry.versions) + 1)
        registry.versions[version] = {"parent": registry.aliases["champion"], "cycle": name}
        registry.aliases["champion"] = version
        assert sum(found.accounting.buckets.values()) == found.accounting.requests
        lines = pl.col("standing").list.len().fill_null(0)
        return chosen.select("id", pl.col("outcome").cast(pl.String), "settled", "tokens", lines).rows()

    rows.put(store, [asked()], [here(id="f")], name="a")
    assert cycle("cycle-000001", NOW + 10) == [("c", "accepted", None, 9, 3)]
    rows.put(store, [behind()], [], name="b")
    assert cycle("cycle-000002", NOW + 30) == [("c", "unjudged", TEXT, 0, 0)]
    rows.put(store, [behind("e", at=40.0)], [], name="c")
    assert "c" not in {id for id, *_ in cycle("cycle-000003", NOW + 60)}
    fates = [str(fate) for fate in explain.explain(store, "c")]
    assert len(fates) == 2 and "settled text: by d" in fates[0] and "unknown (not_shown)" in fates[1]


def test_the_settled_text_becomes_tokens_of_the_parent_and_ends_where_it_is_whole() -> None:
    tokenizer = Tokenizer.from_file(str(ROOT / "infra" / "base_model" / "tokenizer.json"))
    made = SettledTokens(Renderer(tokenizer, "spm", 40, 12), 6)
    store = MemoryStore()
    rows.put(store, [asked(withheld=True), behind()], [])
    plan = rows.plan_store(store, hindsight=Hindsight())
    labelled, repeated = merge_partitions([join_partition(store, part) for part in plan.partitions])
    counts = WindowCounts(plan.requests, repeated)
    found = classify(labelled.with_columns(admitted=pl.lit(True)), LINEAGE.distances(["1"], "1"), NOW + 100, LIMITS, counts)
    chosen = samples.with_settled_tokens(without_context_lines(found.samples), made)
    (row,) = from_parquet(samples.parquet(rows.tables(store, plan.partitions, chosen)), Sample)
    text = made.renderer.encode(TEXT)
    assert row.settled_token_ids == (*text, tokenizer.token_to_id(END_TOKEN))
    assert (row.outcome, row.kept_characters, row.settled_weight, len(row.token_ids)) == ("unjudged", 8, 1.0, 9)
    assert made.ids("foo(bar)\n" * 9, True) == made.renderer.encode("foo(bar)\n" * 9)[:6]
    a_line = replace(made, lines=1)
    assert a_line.ids("foo()\nbar()\n", False) == [*made.renderer.encode("foo()"), made.renderer.end]
    assert a_line.ids("foo()", False) == made.renderer.encode("foo()")
    assert made.ids(None, None) == []


# A developer who writes around the turn of an hour, in two files that begin alike, and comes back.
LINES = ("alpha = compute_something(1)\n", "beta = 2\n", "if alpha:\n    gamma()\n", "delta(alpha, beta)\n")


@st.composite
def sessions(draw: st.DrawFn) -> tuple[list[Completion], list[Feedback]]:
    served: list[Completion] = []
    sent: list[Feedback] = []
    for user in "uv"[: draw(st.integers(1, 2))]:
        time, written = NOW + HOUR - draw(st.sampled_from([1.0, 100.0, 400.0])), ""
        for _ in range(draw(st.integers(1, 6))):
            cut = draw(st.integers(0, len(written)))
            number = len(served)
            served.append(
                completion(
                    f"c{number}",
                    time=time,
                    user=user,
                    prefix=BEGIN + written[:cut],
                    suffix=written[cut:] + END,
                    text=draw(st.sampled_from(["alpha = 1", TEXT, LINES[0].strip()])),
                    file=draw(st.sampled_from(["", "f", "g"])),
                    redacted=draw(st.integers(0, 9)) == 0,
                    opted_out=draw(st.integers(0, 9)) == 0,
                )
            )
            if draw(st.booleans()):
                outcome = draw(st.sampled_from(["accepted", "rejected", "shown", "partially_accepted", "retained"]))
                reported = draw(st.sampled_from([None, None, "alpha = 1\n", ""]))
                sent.append(
                    feedback(
                        f"f{number}",
                        time=time + draw(st.sampled_from([1.0, 50.0])),
                        user=user,
                        outcome=outcome,
                        completion_id=draw(st.sampled_from(["", f"c{number}"])),
                        prefix=BEGIN + written[:cut],
                        suffix=written[cut:] + END,
                        shown=served[-1].text,
                        accepted_characters=draw(st.sampled_from([3, 9])),
                        retained="alpha = 1",
                        settled=reported,
                    )
                )
            time += draw(st.sampled_from([0.5, 5.0, 10.0, 40.0, 299.0]))
            where = draw(st.sampled_from(["end", "end", "cursor", "stay"]))
            line = draw(st.sampled_from(LINES))
            if where == "end":
                written += line
            elif where == "cursor":
                written = written[:cut] + line + written[cut:]
    return served, sent


def obvious(request: Completion, served: list[Completion]) -> str | None:
    """The settled text found the slow way, from the documents: all that stands behind the anchor in the last one."""
    if request.opted_out or request.redacted:
        return None
    anchor = request.prefix[-60:]
    if (request.prefix + request.suffix).count(anchor) != 1:
        return None
    for later in sorted(served, key=lambda c: (c.time, c.id), reverse=True):
        if (later.user, later.project) != (request.user, request.project) or not 10 <= later.time - request.time <= 300:
            continue
        if (request.file and later.file and request.file != later.file) or later.redacted or later.opted_out:
            continue
        if (later.prefix + later.suffix).count(anchor) == 1:
            return (later.prefix + later.suffix).split(anchor)[1]
    return None


@settings(max_examples=60, deadline=None)
@given(sessions())
def test_every_label_stands_in_the_last_document_that_shows_the_place(history) -> None:
    served, _ = history
    found = hindsight.settle(rows.frame(served, Completion), pl.Series([c.id for c in served]), Hindsight())
    for label, request in zip(found.sort("id").to_dicts(), sorted(served, key=lambda c: c.id), strict=True):
        stands = obvious(request, served)
        if label["settled"] is not None:
            assert stands is not None
            assert stands.startswith(label["settled"])
            # The last document may show other text at the end of the place; then an earlier one shows that it was whole.
            (by,) = (c for c in served if c.id == label["settled_by"])
            shown = obvious(request, [by])
            assert shown is not None
            behind = shown[len(label["settled"]) :].lstrip("\n")
            first_line = request.suffix.lstrip("\n").split("\n")[0]
            assert not label["settled_whole"] or behind.startswith(first_line[:20])
        assert (label["settled"] is None) is (label["unsettled"] != "")


def joined(served: list[Completion], sent: list[Feedback], seed: int, objects: int, least: int) -> tuple[Any, ...]:
    store, draw = MemoryStore(), random.Random(seed)
    for number in range(objects):
        parts = [[r for i, r in enumerate(every) if (i * 7 + seed) % objects == number] for every in (served, sent)]
        for part in parts:
            draw.shuffle(part)
        rows.put(store, parts[0], parts[1], name=f"{number}")
    if seed % 2:
        rows.put(store, served[: seed % 3], sent[: seed % 3], name="again")
    window = Window(NOW - HOUR, NOW + 9 * HOUR, NOW - HOUR, {})
    plan = plan_window(store, window, NOW + 9 * HOUR, 60.0, least, Hindsight())
    labelled, repeated = merge_partitions([join_partition(store, partition) for partition in plan.partitions])
    counts = WindowCounts(plan.requests, repeated)
    found = classify(labelled.with_columns(admitted=pl.lit(True)), LINEAGE.distances(["1"], "1"), NOW + 5 * HOUR, LIMITS, counts)
    assert sum(found.buckets.values()) == found.requests
    return found.classified.to_dicts(), len(plan.partitions)


@settings(max_examples=40, deadline=None)
@given(sessions(), st.integers(0, 50), st.integers(1, 3))
def test_the_same_labels_for_any_partition_order_and_delivery(history, seed: int, objects: int) -> None:
    served, sent = history
    whole, _ = joined(served, sent, 0, 1, 10**9)
    divided, partitions = joined(served, sent, seed, objects, 0)
    assert divided == whole
    assert partitions == len({c.time // HOUR for c in served})


@pytest.mark.parametrize(("total", "kept"), [(20_000, 0), (0, 0), (3, 3), (8, 8), (None, 8)])
def test_a_report_by_numbers_keeps_no_more_than_stands_there_and_nothing_of_a_paste(total: int | None, kept: int) -> None:
    report = here(outcome="rejected", completion_id="c", settled_kept=8, settled_total=total)
    assert row(accounted([asked(), behind()], [report]))["kept_characters"] == kept


def test_a_request_without_an_end_of_time_ends_no_join() -> None:
    assert row(accounted([asked(), behind(), behind(id="z", time=float("inf"))], []))["settled"] is not None
