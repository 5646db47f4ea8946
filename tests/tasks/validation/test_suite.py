"""The real suites in the real Great Expectations: which rows they quarantine, and what stops a batch."""

import json
import math

import pytest

from infra.records import Profile, Quarantined, Sample
from infra.settings.schema import Collect
from tasks.validation import quarantine
from tasks.validation.batch import BatchStats, Bounds, batch_stats, bounds
from tasks.validation.drift import LEAST_CYCLES, earlier, merged, profile, rate_range
from tasks.validation.suite import BatchRefused, Validation, docs, validate
from tests.tasks.labels.test_accounting import accounted, sealed
from tests.tasks.made import NOW, MemoryStore, completion, feedback, sample
from tests.tasks.rows import sampled

GOOD = [sample(f"good {i}") for i in range(30)]
FINE = BatchStats(
    duplicate_share=0.0,
    unknown_version_share=0.0,
    clock_skew_seconds=-1.0,
    user_share=0.1,
    credential_share=1.0,
    project_share=1.0,
    acceptance_rate=0.1,
    shown_length=8.0,
)
PAST = [
    Profile(samples=1000, judged=1000, accepted=100, shown_characters=10_000, shown_characters_squared=150_000)
] * LEAST_CYCLES


def limits(samples: list[Sample], past: list[Profile] | None = None, **settings) -> Bounds:
    return bounds(sampled(samples), past or [], Collect(**settings))


def test_bad_rows_are_named_with_the_expectation_that_they_fail() -> None:
    many = [sample(f"many {i}") for i in range(300)]
    bad = [
        sample("nan", logprobs=[-0.1, math.nan]),
        sample("positive", logprobs=[-0.1, 0.2]),
        sample("uneven", logprobs=[-0.1]),
        sample("no prompt", prompt_token_ids=[]),
        sample("too much", accepted_characters=9),
        sample("cold", temperature=0.0),
        sample("by a judge", outcome="judged"),
    ]
    found = validate(sampled([*many, *bad]), FINE, limits(many))
    assert found.quarantined == {
        "nan": "logprobs_are_finite",
        "positive": "logprobs_are_not_above_zero",
        "uneven": "every_token_has_a_logprob",
        "no prompt": "prompt_is_not_empty",
        "too much": "accepted_is_within_shown",
        "cold": "temperature_is_positive",
        "by a judge": "outcome_is_known",
    }
    assert found.refused == ()
    assert found.rows == 307
    pages = docs(found.results)
    assert set(pages) == {"samples", "batch"}
    assert "nan" in pages["samples"]
    assert "clock_skew_seconds" in pages["batch"]


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
    found = validate(sampled(samples), FINE, limits(samples))
    with pytest.raises(BatchRefused, match=reason):
        found.check(1.0)


@pytest.mark.parametrize(
    ("field", "value", "settings", "message"),
    [
        ("duplicate_share", 0.3, {}, "duplicate_share is 0.3, expected at most 0.1"),
        ("unknown_version_share", 0.06, {}, "unknown_version_share is 0.06, expected at most 0.05"),
        ("clock_skew_seconds", 61.0, {}, "clock_skew_seconds is 61, expected at most 60"),
        ("user_share", 0.3, {"max_user_share": 0.25}, "user_share is 0.3, expected at most 0.25"),
        ("credential_share", 0.5, {"max_credential_share": 0.4}, "credential_share is 0.5, expected at most 0.4"),
        ("project_share", 0.9, {"max_project_share": 0.6}, "project_share is 0.9, expected at most 0.6"),
        ("acceptance_rate", 0.9, {}, "acceptance_rate is 0.9, expected at least"),
        ("acceptance_rate", 0.001, {}, "acceptance_rate is 0.001, expected at least"),
        ("shown_length", 90.0, {}, "shown_length is 90, expected at least"),
    ],
)
def test_a_batch_that_is_not_like_it_should_be_stops_the_cycle(field: str, value: float, settings, message: str) -> None:
    many = [
        sample(f"{i}", user=f"u{i % 20}", project=f"p{i % 3}", accepted_characters=8 if i % 10 == 0 else 0) for i in range(900)
    ]
    found = validate(sampled(many), BatchStats(**{**FINE.__dict__, field: value}), limits(many, PAST, **settings))
    assert len(found.refused) == 1
    with pytest.raises(BatchRefused, match=message) as refused:
        found.check(1.0, ["s3://b/rows"])
    assert "s3://b/rows" in str(refused.value)
    assert "collect.max_" in str(refused.value)
    assert "prefect deployment run cycle/cycle" in str(refused.value)


def test_too_many_bad_rows_stop_the_cycle() -> None:
    found = Validation(rows=10, expectations=13, quarantined={"1": "a", "2": "b", "3": "a"}, refused=())
    found.check(0.3)
    with pytest.raises(BatchRefused, match=r"3 of 10 rows failed \(a, b\); at most 20% may"):
        found.check(0.2)


def test_the_figures_of_a_batch() -> None:
    served = [completion(str(i), prefix=f"{i}", user="u" if i < 3 else f"v{i}", project="p" if i else "q") for i in range(6)]
    told = [
        feedback(str(i), prefix=f"{i}", user=c.user, project=c.project, outcome="accepted" if i < 2 else "rejected")
        for i, c in enumerate(served)
    ]
    unknown = completion("unknown", prefix="z", policy_version="77")
    found = batch_stats(accounted([*served, unknown, served[0]], told), skew=2.0)
    assert found == BatchStats(
        duplicate_share=1 / 8,
        unknown_version_share=1 / 8,
        clock_skew_seconds=2.0,
        user_share=3 / 6,
        credential_share=1.0,
        project_share=5 / 6,
        acceptance_rate=2 / 6,
        shown_length=8.0,
    )


def test_profiles_add_up() -> None:
    made = [
        sample("1"),
        sample("2", outcome="rejected", accepted_characters=0),
        sample("3", outcome="nothing", shown_characters=0),
    ]
    whole = profile(sampled(made))
    assert whole == Profile(samples=3, judged=2, accepted=1, shown_characters=16, shown_characters_squared=128)
    assert merged([profile(sampled(made[:1])), profile(sampled(made[1:]))]) == whole


def test_a_small_batch_may_differ_by_chance_and_a_first_one_by_anything() -> None:
    small = profile(sampled([sample(str(i), accepted_characters=0) for i in range(20)]))
    assert rate_range(small, PAST, 4.0).low == 0.0
    large = profile(sampled([sample(str(i), accepted_characters=0) for i in range(900)]))
    expected = rate_range(large, PAST, 4.0)
    # 0.1 of 3,000 before: a quarter and four times of it, which are both beyond five standard errors of 0.0114.
    assert (expected.low, expected.high) == (pytest.approx(0.1 / 4, rel=0.02), pytest.approx(0.4, rel=0.01))
    assert rate_range(large, PAST[1:], 4.0).high == 1.0
    never = [Profile(samples=100, judged=100)] * LEAST_CYCLES
    assert rate_range(profile(sampled([sample("1")])), never, 4.0).high > 0.05, (
        "a history without an accept does not forbid the first"
    )


def test_the_cycles_before_are_read_from_their_manifests() -> None:
    store = MemoryStore()
    for number in range(1, 6):
        manifest = {"cycle": f"cycle-{number:06d}", "created": NOW, "champion": "1", "parent": "1", "since": 0.0, "until": NOW}
        manifest |= {"completions": (), "feedback": (), "samples": {"key": "", "sha256": "", "rows": 0}, "buckets": {}}
        manifest |= {"requests": 0, "settings_sha256": ""}
        if number != 4:  # a manifest from before there were profiles
            manifest["profile"] = {"judged": number, "samples": number}
        store.put_json(f"cycles/cycle-{number:06d}/manifest.json", manifest)
    assert [p.judged for p in earlier(store, 3)] == [5, 3]
    assert earlier(store, 0) == []


def test_what_is_quarantined_is_written_once_with_its_reason_and_no_secret() -> None:
    store = MemoryStore()
    served = [completion("bad", prefix="a"), completion("secret", prefix="b", redacted=True), completion("good", prefix="c")]
    accounts, samples = sealed(served, [feedback(c.id, prefix=c.prefix) for c in served])
    broken = Quarantined(completion_id="torn", project="p", user="u", time=NOW, reason="malformed", row="{}")
    bad = [s for s in samples if s.completion_id == "bad"]
    kept = quarantine.rows(accounts, {"bad": "logprobs_are_finite"}, [broken], bad)
    reference = quarantine.write(store, "cycle-000001", kept)
    assert reference
    assert quarantine.write(store, "cycle-000001", kept) == reference
    assert list(store.keys("")) == [reference.key]
    found = store.get_rows(reference.key, Quarantined)
    assert [(q.completion_id, q.reason) for q in found] == [
        ("bad", "logprobs_are_finite"),
        ("secret", "secret"),
        ("torn", "malformed"),
    ]
    assert json.loads(found[0].row)["token_ids"] == list(bad[0].token_ids)
    assert found[1].row == ""
    assert quarantine.write(store, "cycle-000001", []) is None
