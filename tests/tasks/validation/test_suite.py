"""The suites in Great Expectations: the rows that they quarantine and the batches that they refuse."""

import json
import math
import re

import pytest

from infra.records import Profile, Quarantined, Sample
from infra.settings.schema import Collect
from infra.storage import cycles
from tasks.validation import quarantine
from tasks.validation.batch import BatchStats, Bounds, batch_stats, bounds
from tasks.validation.drift import LEAST_CYCLES, earlier, merged, profile, rate_range
from tasks.validation.pages import pages as pages_of
from tasks.validation.quarantine import ValidationEvidence
from tasks.validation.suite import BATCH_SUITE, SUITE, BatchRefused, Validation, validate
from tests.tasks.labels.test_accounting import account, account_with_samples
from tests.tasks.made import NOW, MemoryStore, completion, feedback, sample
from tests.tasks.rows import sample_frame

GOOD = [sample(f"good {i}") for i in range(30)]
FINE = BatchStats(
    duplicate_share=0.0,
    unknown_version_share=0.0,
    clock_skew_seconds=-1.0,
    user_share=0.1,
    credential_share=1.0,
    project_share=1.0,
    accepted_of_judged=0.1,
    shown_length=8.0,
)
PAST = [
    Profile(samples=1000, judged=1000, accepted=100, shown_characters=10_000, shown_characters_squared=150_000)
] * LEAST_CYCLES


def limits(samples: list[Sample], past: list[Profile] | None = None, **settings) -> Bounds:
    return bounds(sample_frame(samples), past or [], Collect(**settings))


def test_bad_rows_are_quarantined_with_the_failed_expectation() -> None:
    good = [sample(f"many {i}") for i in range(300)]
    bad = [
        sample("nan", logprobs=[-0.1, math.nan]),
        sample("positive", logprobs=[-0.1, 0.2]),
        sample("uneven", logprobs=[-0.1]),
        sample("no prompt", prompt_token_ids=[]),
        sample("too much", accepted_characters=9),
        sample("cold", temperature=0.0),
        sample("by a judge", outcome="judged"),
    ]
    validation = validate(sample_frame([*good, *bad]), FINE, limits(good))
    assert validation.quarantined == {
        "nan": "logprobs_are_finite",
        "positive": "logprobs_are_not_above_zero",
        "uneven": "every_token_has_a_logprob",
        "no prompt": "prompt_is_not_empty",
        "too much": "accepted_is_within_shown",
        "cold": "temperature_is_positive",
        "by a judge": "outcome_is_known",
    }
    assert validation.refused == ()
    assert validation.rows == 307
    pages = pages_of(validation)
    assert set(pages) == {"samples", "batch"}
    assert "1 rows fail: nan" in pages["samples"] and "rows are quarantined" in pages["samples"]
    rate = "<td>accepted_of_judged</td><td>0.1</td>"
    assert rate in pages["batch"] and "<td>at most 60</td>" in pages["batch"], "each figure stands beside its bounds"
    assert not any(re.search(r"<script|<link|https?:|url\(", page) for page in pages.values()), "nothing is loaded, nothing runs"


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ([], "batch_has_rows"),
        ([*GOOD, GOOD[0]], "completions_are_unique"),
        ([*GOOD, sample("x", policy_version="main")], "versions_are_numbers: policy_version is .*main.*regex"),
        ([*GOOD, sample("x", logprobs=[-0.1, -math.inf])], "logprobs_are_sound: logprob_lowest is .*-inf.* at least -100"),
        ([*GOOD, sample("x", token_ids=[], logprobs=[])], "logprobs_are_sound"),
        ([*GOOD, sample("x", logprobs=[-0.1, 0.2])], "logprobs_are_probabilities: logprob_highest is .*0.2.* at most 1e-05"),
    ],
)
def test_bad_samples_stop_the_cycle(samples, reason: str) -> None:
    validation = validate(sample_frame(samples), FINE, limits(samples))
    with pytest.raises(BatchRefused, match=reason):
        validation.check(max_quarantined=1.0)


def test_a_setting_that_an_expectation_names_exists() -> None:
    expectations = [each for path in (SUITE, BATCH_SUITE) for each in json.loads(path.read_text())["expectations"]]
    named = {each["meta"]["setting"] for each in expectations if "setting" in each["meta"]}
    assert named and named <= {f"collect.{name}" for name in Collect.model_fields}


@pytest.mark.parametrize(
    ("field", "value", "settings", "message"),
    [
        ("duplicate_share", 0.3, {}, "duplicate_share is 0.3, expected at most 0.1"),
        ("unknown_version_share", 0.06, {}, "unknown_version_share is 0.06, expected at most 0.05"),
        ("clock_skew_seconds", 61.0, {}, "clock_skew_seconds is 61, expected at most 60"),
        ("user_share", 0.3, {"max_user_share": 0.25}, "user_share is 0.3, expected at most 0.25"),
        ("credential_share", 0.5, {"max_credential_share": 0.4}, "credential_share is 0.5, expected at most 0.4"),
        ("project_share", 0.9, {"max_project_share": 0.6}, "project_share is 0.9, expected at most 0.6"),
        ("accepted_of_judged", 0.9, {}, "accepted_of_judged is 0.9, expected at least"),
        ("accepted_of_judged", 0.001, {}, "accepted_of_judged is 0.001, expected at least"),
        ("shown_length", 90.0, {}, "shown_length is 90, expected at least"),
    ],
)
def test_a_batch_statistic_outside_its_bounds_stops_the_cycle(field: str, value: float, settings, message: str) -> None:
    rows = [
        sample(f"{i}", user=f"u{i % 20}", project=f"p{i % 3}", accepted_characters=8 if i % 10 == 0 else 0) for i in range(900)
    ]
    validation = validate(sample_frame(rows), BatchStats(**{**FINE.__dict__, field: value}), limits(rows, PAST, **settings))
    assert len(validation.refused) == 1
    with pytest.raises(BatchRefused, match=message) as refused:
        validation.check(["s3://b/rows"], max_quarantined=1.0)
    assert "s3://b/rows" in str(refused.value)
    assert ("collect.max_" in str(refused.value)) == bool(settings)  # other bounds are constants: only their cause can change
    assert "prefect deployment run cycle/cycle" in str(refused.value)


def test_too_many_bad_rows_stop_the_cycle() -> None:
    validation = Validation(rows=10, expectations=13, quarantined={"1": "a", "2": "b", "3": "a"}, refused=())
    validation.check(max_quarantined=0.3)
    with pytest.raises(BatchRefused, match=r"3 of 10 rows failed \(a, b\); at most 20% may"):
        validation.check(max_quarantined=0.2)


def test_batch_stats_equal_values_computed_by_hand() -> None:
    completions = [completion(str(i), prefix=f"{i}", user="u" if i < 3 else f"v{i}", project="p" if i else "q") for i in range(6)]
    events = [
        feedback(str(i), prefix=f"{i}", user=c.user, project=c.project, outcome="accepted" if i < 2 else "rejected")
        for i, c in enumerate(completions)
    ]
    unknown = completion("unknown", prefix="z", policy_version="77")
    stats = batch_stats(account([*completions, unknown, completions[0]], events), skew=2.0)
    assert stats == BatchStats(
        duplicate_share=1 / 8,
        unknown_version_share=1 / 8,
        clock_skew_seconds=2.0,
        user_share=3 / 6,
        credential_share=1.0,
        project_share=5 / 6,
        accepted_of_judged=2 / 6,
        shown_length=8.0,
    )


def test_the_merge_of_profiles_is_the_profile_of_all_samples() -> None:
    samples = [
        sample("1"),
        sample("2", outcome="rejected", accepted_characters=0),
        sample("3", outcome="nothing", shown_characters=0),
    ]
    total = profile(sample_frame(samples))
    assert total == Profile(samples=3, judged=2, accepted=1, shown_characters=16, shown_characters_squared=128)
    assert merged([profile(sample_frame(samples[:1])), profile(sample_frame(samples[1:]))]) == total


def test_bounds_allow_chance_in_small_batches_and_anything_without_history() -> None:
    small = profile(sample_frame([sample(str(i), accepted_characters=0) for i in range(20)]))
    assert rate_range(small, PAST).low == 0.0
    large = profile(sample_frame([sample(str(i), accepted_characters=0) for i in range(900)]))
    expected = rate_range(large, PAST)
    # The rate was 0.1 in 3,000 samples. A quarter and four times of it are both beyond five standard errors of 0.0114.
    assert (expected.low, expected.high) == (pytest.approx(0.1 / 4, rel=0.02), pytest.approx(0.4, rel=0.01))
    assert rate_range(large, PAST[1:]).high == 1.0
    never = [Profile(samples=100, judged=100)] * LEAST_CYCLES
    assert rate_range(profile(sample_frame([sample("1")])), never).high > 0.05, (
        "a history without an accept does not forbid the first"
    )


def test_profiles_of_earlier_cycles_are_read_from_their_manifests() -> None:
    store = MemoryStore()
    for number in range(1, 6):
        manifest = {"cycle": f"cycle-{number:06d}", "created": NOW, "champion": "1", "parent": "1", "since": 0.0, "until": NOW}
        manifest |= {"completions": (), "feedback": (), "samples": {"key": "", "sha256": "", "rows": 0}, "buckets": {}}
        manifest |= {"requests": 0, "settings_sha256": ""}
        if number != 4:  # an older manifest without a profile
            manifest["profile"] = {"judged": number, "samples": number}
        store.put_json(f"cycles/cycle-{number:06d}/manifest.json", manifest)
    assert [p.judged for p in earlier(store, cycles=3)] == [5, 3]
    assert earlier(store, cycles=0) == []


def test_quarantined_requests_are_written_once_with_reason_and_without_secrets() -> None:
    store = MemoryStore()
    completions = [completion("bad", prefix="a"), completion("secret", prefix="b", redacted=True), completion("good", prefix="c")]
    accounting, samples = account_with_samples(completions, [feedback(c.id, prefix=c.prefix) for c in completions])
    broken = Quarantined(completion_id="torn", project="p", user="u", time=NOW, reason="malformed", row="{}")
    bad = [s for s in samples if s.completion_id == "bad"]
    rows = quarantine.rows(accounting, {"bad": "logprobs_are_finite"}, [broken], bad)
    reference = quarantine.write(store, "cycle-000001", rows)
    assert reference
    assert quarantine.write(store, "cycle-000001", rows) == reference
    assert list(store.keys("")) == [reference.key]
    records = store.get_rows(reference.key, Quarantined)
    assert [(q.completion_id, q.reason) for q in records] == [
        ("bad", "logprobs_are_finite"),
        ("secret", "secret"),
        ("torn", "malformed"),
    ]
    assert json.loads(records[0].row)["token_ids"] == list(bad[0].token_ids)
    assert records[1].row == ""
    assert quarantine.write(store, "cycle-000001", []) is None


def test_two_validations_at_once_keep_their_own_pages_and_those_of_earlier_code_keep_their_names() -> None:
    store = MemoryStore()
    first, second = (quarantine.write_docs(store, "cycle-000001", {"samples": page}) for page in ("<p>1</p>", "<p>2</p>"))
    assert [store.get(key) for key in (*first, *second)] == [b"<p>1</p>", b"<p>2</p>"]
    assert quarantine.write_docs(store, "cycle-000001", {"samples": "<p>1</p>"}) == first, "the same page is the same object"
    earlier = "cycles/cycle-000001/docs/samples.html"
    assert {cycles.docs_name(key) for key in (*first, *second, earlier)} == {"samples.html"}


def test_rows_and_pages_of_a_batch_that_is_refused_again_and_again_do_not_pile_up() -> None:
    store, day, cycle = MemoryStore(), 86_400.0, "cycle-000001"

    def validated(hour: int) -> ValidationEvidence:
        store.now = NOW + hour * 3600.0
        row = Quarantined(completion_id=f"torn-{hour}", project="p", user="u", time=NOW, reason="malformed", row="{}")
        docs = quarantine.write_docs(store, cycle, {"samples": f"<p>{hour}</p>", "batch": "<p>same</p>"})
        evidence = ValidationEvidence(quarantine.write(store, cycle, [row]), docs)
        quarantine.remove_replaced(store, cycle, evidence, store.now)
        return evidence

    written = [validated(hour) for hour in range(0, 73, 12)]
    kept = {key for evidence in written[-3:] for key in evidence.keys}
    assert set(store.keys("")) == kept, "those of the last day, and the page of this run"
    store.put(cycles.key(cycle, cycles.MANIFEST), b"{}")
    quarantine.remove_replaced(store, cycle, ValidationEvidence(), store.now + 9 * day)
    assert all(store.exists(key) for key in kept), "a manifest may name them"
