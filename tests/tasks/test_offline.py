"""Import of Continue's own log as offline examples: every line is counted, and PPO cannot read the examples as samples."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from infra.records import OfflineExample, Sample
from infra.redaction.redactor import REDACTED, Redactor
from infra.settings import Settings
from infra.settings.schema import Collect
from infra.storage.events import tombstones
from tasks.labels.collect import collect
from tasks.offline import Imported, parse, read, write
from tasks.trainer.update import stored
from tasks.upkeep.forget import forget, request
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore

ADA = "a" * 32
SESSION = Path(__file__).parents[1] / "serving/gateway/sessions/continue.json"
# An event as Continue logs it (schema 0.2.0), without some fields that the import does not read.
LOGGED = {
    "eventName": "autocomplete",
    "schema": "0.2.0",
    "timestamp": "2026-06-18T10:00:00.000Z",
    "userId": "",
    "disable": False,
    "maxPromptTokens": 1024,
    "useCache": True,
    "accepted": True,
    "time": 812,
    "prefix": "x = ",
    "suffix": "\n",
    "prompt": "<|fim_prefix|>x = ",
    "completion": "foo(bar)",
    "modelProvider": "openai",
    "modelName": "Qwen2.5-Coder-1.5B",
    "cacheHit": False,
    "filepath": "file:///w/a.py",
    "completionId": "1",
    "uniqueId": "machine",
}
FIELDS = {
    "completionId": st.sampled_from(["1", "2"]),
    "accepted": st.booleans() | st.none(),
    "prefix": st.text(max_size=3) | st.integers(),
    "suffix": st.text(max_size=3),
    "completion": st.text(max_size=3),
    "cacheHit": st.booleans(),
    "timestamp": st.text(max_size=3),
}


def line(**fields: object) -> str:
    return json.dumps({**LOGGED, **fields})


def imported(*lines: str) -> Imported:
    return parse(lines, ADA, "p", Redactor())


def test_a_logged_event_becomes_an_example() -> None:
    expected = OfflineExample(
        id="1", time=1_781_776_800.0, project="p", user=ADA, model="Qwen2.5-Coder-1.5B", prefix="x = ", suffix="\n",
        shown="foo(bar)", accepted=True,
    )  # fmt: skip
    assert imported(line()).examples == (expected,)
    assert imported(json.dumps({"name": "autocomplete", "schema": "0.2.0", "data": LOGGED})).examples == (expected,)
    old = {k: v for k, v in LOGGED.items() if k not in ("eventName", "schema", "userId")}
    assert imported(json.dumps(old)).examples == (expected,)


def test_events_of_the_real_client_match_its_requests() -> None:
    """Its events hold code of other files in the prefix, and a selected name in prefix and completion."""
    bodies = [exchange["request"].split("\r\n\r\n")[1] for exchange in json.loads(SESSION.read_text())["exchanges"]]
    prompts = [json.loads(body)["prompt"] for body in bodies if "prompt" in json.loads(body)]
    log = imported(*(body for body in bodies if '"completionId"' in body))
    assert log.buckets == {**dict.fromkeys(log.buckets, 0), "kept": 7, "superseded": 1, "cache_hit": 1}
    assert {e.shown for e in log.examples if not e.accepted} == {"add(width, height)"}
    assert [e.shown for e in log.examples if e.prefix.endswith("os.pathsep")] == ["(1, 2)"]
    reused = [e for e in log.examples if not any(f"<|fim_prefix|>{e.prefix}<|fim_suffix|>" in prompt for prompt in prompts)]
    assert [(e.prefix[-2:], e.shown) for e in reused] == [("re", "turn beta")]


def test_every_line_is_in_one_bucket() -> None:
    log = imported(
        line(completionId="1", accepted=False),
        line(completionId="1"),
        line(completionId="1", accepted=False),
        line(completionId="2", accepted=False),
        line(completionId="3", cacheHit=True),
        line(completionId="4", accepted=None),
        line(completionId="5", prefix=None),
        line(completionId="6", completion=""),
        line(completionId="7", timestamp="yesterday"),
        line(completionId="8", eventName="chatInteraction"),
        "{torn",
        "[]",
    )
    assert log.buckets == {
        "kept": 2, "superseded": 2, "cache_hit": 1, "unjudged": 1, "no_code": 2, "malformed": 3, "other_event": 1,
    }  # fmt: skip
    assert {e.id: e.accepted for e in log.examples} == {"1": True, "2": False}, "a late accept counts"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=20) | st.fixed_dictionaries({}, optional=FIELDS).map(json.dumps), max_size=6))
def test_buckets_add_up_for_any_file(lines: list[str]) -> None:
    log = imported(*lines)
    assert sum(log.buckets.values()) == len(lines)
    assert len(log.examples) == log.buckets["kept"]


def test_secrets_do_not_reach_the_store() -> None:
    (example,) = imported(line(prefix='password = "hunter2hunter2"\nx = ')).examples
    assert "hunter2" not in example.prefix
    assert REDACTED in example.prefix


def test_a_file_always_makes_the_same_object_and_erased_users_are_removed() -> None:
    store = MemoryStore()
    examples = imported(line(), line(completionId="2")).examples
    assert write(store, examples) == write(store, examples)
    assert read(store) == list(examples)
    tombstones.write(store, request(ADA, "", NOW, "", ""))
    assert read(store) == []
    forgetting = forget(store, MemoryRegistry().client, request(ADA, "", NOW, "", ""), NOW, dry_run=False)
    assert sum(forgetting.rows.values()) == 2
    assert not list(store.keys("offline/"))


def test_ppo_cannot_read_an_offline_example_as_a_sample(tmp_path: Path) -> None:
    store, registry = MemoryStore(), MemoryRegistry(v1={})
    registry.aliases["champion"] = "1"
    key = write(store, imported(line()).examples)
    with pytest.raises(ValidationError, match="logprobs"):
        store.get_rows(key, Sample)
    (tmp_path / "samples.parquet").write_bytes(store.get(key))
    with pytest.raises(ValidationError, match="logprobs"):
        stored.store(tmp_path / "samples.parquet", tmp_path / "stored", vocabulary=100, positions=100)
    collected = collect(store, registry.client, Settings(collect=Collect()), NOW)
    assert collected.accounting.requests == 0, "a cycle does not read offline examples"
    with pytest.raises(ValidationError, match="behaviour_logprobs"):
        OfflineExample.model_validate({**imported(line()).examples[0].model_dump(), "behaviour_logprobs": "made up"})
