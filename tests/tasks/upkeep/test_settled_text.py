"""Whoever opted out or was forgotten leaves no settled text in any store: spool, events, cycles, pages, MLflow.

Users write the same places through the serving app; the code of a cycle collects, validates, rewards and seals what they left.
The text of a user who did neither is found in these stores, so the search would find the others'.
"""

import io
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from infra.model.fim import Renderer
from infra.records import CycleOutcome, Manifest
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment, Hindsight
from infra.storage import cycles
from infra.storage.cycles import docs_name
from infra.storage.store import sha256
from tasks.labels import context_lines, explain, samples, users
from tasks.labels.collect import Collected, collect
from tasks.labels.samples import SettledTokens
from tasks.labels.shares import weight_shares
from tasks.rewards.reward import reward_samples
from tasks.steps import transaction
from tasks.upkeep.forget import forget, request
from tasks.validation import batch, quarantine, suite
from tasks.validation.pages import pages
from tasks.validation.quarantine import ValidationEvidence
from tasks.versions.register import run_artifacts
from tests.serving.fakes import House
from tests.serving.fakes import tokenizer as trained_tokenizer
from tests.tasks.labels.test_hindsight import HEAD
from tests.tasks.made import MemoryRegistry, MemoryStore

SETTINGS = Settings(
    collect=Collect(settle_seconds=0, max_user_share=1, max_user_weight=1, min_samples=1, hindsight=Hindsight(quiet_seconds=0)),
    experiment=Experiment(min_history_requests=0),
)
CYCLE = "cycle-000001"
OPT_OUT = {"X-Tabloop-Opt-Out": "1"}
SUFFIX = "\n    return result\n\n\nclass Something:\n    pass\n"
PLACE = HEAD + "    for item in items:\n        result += item\n    value = "
Texts = dict[str, str]


async def write(house: House, user: str, *, out_first: bool = False, out_later: bool = False) -> None:
    """Ask at a place, tell what stands there, ask at another one, and behind it, where a later request shows what was typed."""
    who = {"X-User-ID": user}
    first, later = who | (OPT_OUT if out_first else {}), who | (OPT_OUT if out_later else {})
    answer = await house.complete(headers=first, prompt=PLACE.replace("value", "sent"), suffix=SUFFIX)
    sent = {"completion_id": answer.json()["id"], "outcome": "accepted", "settled": f"told_by_{user}()"}
    # An editor that sends the header with completions alone: its events are known by the request.
    await house.send_feedback("/v1/feedback", sent, headers=who if out_first else later)
    await house.complete(headers=first, prompt=PLACE, suffix=SUFFIX)
    await house.complete(headers=later, prompt=f"{PLACE}typed_by_{user}()\n    return result\n\n\nclass Something:\n    ")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return trained_tokenizer()


@dataclass(frozen=True)
class Served:
    store: MemoryStore
    folder: Path
    spooled: Texts
    """The files of the app before its events were shipped."""
    users: dict[str, str]
    """The hash of each user by the name."""


@pytest.fixture
async def served(tmp_path: Path, tokenizer: Tokenizer) -> Served:
    async with House(tmp_path, tokenizer) as house:
        for user in ("bob", "carol"):
            await write(house, user)
        await write(house, "ada", out_first=True, out_later=True)
        await write(house, "dora", out_later=True)
        names = dict.fromkeys(row.user for row in house.rows("completions"))
        spooled = files(tmp_path)
        assert await house.ship()
        store = MemoryStore()
        store.objects = {key: body for key, body in house.store.objects.items() if key.startswith("events/")}
        return Served(store, tmp_path, spooled, dict(zip(("bob", "carol", "ada", "dora"), names, strict=True)))


def cycle(store: MemoryStore, registry: MemoryRegistry, tokenizer: Tokenizer) -> tuple[Collected, Manifest]:
    """Run the steps of a cycle that write: validation, quarantine, pages, samples, requests, known users, manifest."""
    collected = collect(store, registry.client, SETTINGS, time.time() + 1)
    accounting = collected.accounting
    validation = suite.validate(
        accounting.samples, batch.batch_stats(accounting, collected.skew), batch.bounds(accounting.samples, [], SETTINGS.collect)
    )
    failed = dict.fromkeys(accounting.samples["id"].head(1), "logprobs_are_finite")  # a row of the first user
    rows = samples.records(store, collected.plan.partitions, accounting.samples_of(failed))
    written = quarantine.write(store, CYCLE, quarantine.rows(accounting, failed, collected.malformed, rows))
    evidence = ValidationEvidence(written, quarantine.write_docs(store, CYCLE, pages(validation)))
    tokens = SettledTokens(Renderer(tokenizer, "spm", 40, 20), 64)
    chosen = context_lines.with_context_lines(store, collected.plan.partitions, accounting.samples)
    read = samples.read_tokens(store, collected.plan.partitions, chosen, tokens)
    chosen = samples.with_settled_tokens(chosen, tokens, read)
    chosen = reward_samples(chosen, SETTINGS.reward, weight_shares(SETTINGS.collect)).samples
    body = samples.parquet(samples.tables(read, chosen))
    explain.write(store, CYCLE, sha256([body]), accounting)
    users.write(store, CYCLE, sha256([body]), collected.register)
    manifest = transaction.seal(store, CYCLE, transaction.manifest_fields(collected, evidence, time.time()), body, SETTINGS)
    transaction.finish(store, CycleOutcome(cycle=CYCLE, result="registered", reason=""))
    return collected, manifest


def objects(store: MemoryStore, tokenizer: Tokenizer) -> Texts:
    """Every object as text: the values of Parquet's columns, token ids as the text that they stand for."""
    return {key: "".join(parts(body, tokenizer)) for key, body in store.objects.items()}


def parts(body: bytes, tokenizer: Tokenizer) -> Iterator[str]:
    if not body.startswith(b"PAR1"):
        yield body.decode(errors="replace")
        return
    for row in pq.read_table(io.BytesIO(body)).to_pylist():
        yield repr(row)
        for fields in (row, json.loads(row.get("row") or "{}")):  # a quarantined row is JSON in a column
            yield from (tokenizer.decode(ids, skip_special_tokens=False) for name, ids in fields.items() if "token_ids" in name)


def files(folder: Path) -> Texts:
    return {str(path): path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file()}


def holding(texts: Texts, user: str) -> list[str]:
    """The kinds of objects and files that hold what a user wrote at a place."""
    return sorted({kind(key) for key, text in texts.items() if f"told_by_{user}" in text or f"typed_by_{user}" in text})


def kind(key: str) -> str:
    if key.startswith("events/"):
        return "/".join(key.split("/")[:2])
    return docs_name(key) if key.endswith(".html") else key.split("/")[-1].split("-")[0]


async def test_who_opted_out_or_was_forgotten_leaves_no_settled_text_in_any_store(served: Served, tokenizer: Tokenizer) -> None:
    store, registry = served.store, MemoryRegistry(v0={})
    registry.aliases["champion"] = "0"
    collected, manifest = cycle(store, registry, tokenizer)
    stores = objects(store, tokenizer)
    settled = dict(collected.accounting.classified.drop_nulls("settled").group_by("user").agg("settled").iter_rows())
    for user in ("bob", "carol"):
        assert {text.strip() for text in settled[served.users[user]]} == {f"told_by_{user}()", f"typed_by_{user}()"}
        assert {"events/completions", "events/feedback", "samples"} <= set(holding(stores, user)), "the search finds it"
        assert holding(served.spooled, user)
    assert settled.keys() == {served.users["bob"], served.users["carol"]}
    for user in ("ada", "dora"):
        assert holding(served.spooled, user) == holding(stores, user) == []
    of_cycles = {"samples", "requests", "users", "quarantined", "manifest.json", "settings", "samples.html", "batch.html"}
    assert of_cycles | {"events/completions", "events/feedback"} <= set(map(kind, stores)), "every store is searched"
    artifacts = run_artifacts(store, manifest)
    assert {"manifest.json", "measures.md", "requests.md", "data_docs/samples.html"} <= artifacts.keys()
    for user in served.users:
        assert holding(artifacts, user) == holding(files(served.folder), user) == [], "MLflow, and the app once all is shipped"

    forgotten = request(served.users["carol"], "", 0.0, "operator", "she asked")
    forget(store, registry.client, forgotten, 0.0, dry_run=False)
    left = objects(store, tokenizer)
    assert holding(left, "carol") == []
    assert holding(left, "bob") == holding(stores, "bob")
    assert cycles.manifest_of(store, CYCLE) == manifest
