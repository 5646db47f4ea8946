"""A cycle's held-out sets: nothing that training data hold is scored, and the team's own text stays where it can be erased."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tokenizers import Tokenizer

from infra.model.fim import Order, Renderer
from infra.records import HeldOutCompletion, HeldOutPlace, HeldOutSet, Manifest, Sample
from infra.settings import ROOT, Settings
from infra.settings.schema import Collect, Evaluate, Experiment, Gate, HeldOut
from infra.storage.store import to_parquet
from tasks.evaluation import evaluate, team_set
from tasks.evaluation.cycle_sets import NoPlaces, ScoredSet, prepare, scored_sets
from tasks.evaluation.evaluate import Contest
from tasks.evaluation.gate import guardrails, paired, slices
from tasks.evaluation.heldout import sets
from tasks.evaluation.heldout.build import build
from tasks.evaluation.heldout.duplicates import Hashes, shingles_of_place, union
from tasks.evaluation.heldout.sets import Places
from tasks.evaluation.training_overlap import TrainedText, is_trained
from tasks.labels.collect import Collected, collect
from tasks.upkeep.forget import forget, request
from tasks.upkeep.retention import retain
from tests.tasks.evaluation import fake_models
from tests.tasks.evaluation.fake_models import FixedText
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, completion, feedback, manifest, sample

TOKENIZER = Tokenizer.from_file(str(ROOT / "infra/base_model/tokenizer.json"))
CODE = [(ROOT / "tests/data/code/service/internal" / name).read_text() for name in ("limiter.go", "orders.go")]
OWN, NONE = HeldOut(name="own", kind="team", share=0.5, key="k"), np.empty(0, np.uint64)
LIMITS = Settings(
    collect=Collect(settle_seconds=10, join_seconds=60, max_user_share=1, max_user_weight=1),
    evaluate=Evaluate(sets=(OWN,)),
    experiment=Experiment(min_history_requests=0),
)


def place(text: str, truth: str, **fields: object) -> HeldOutPlace:
    """Return the place of a text's only `truth`."""
    prefix, suffix = text.split(truth)
    return HeldOutPlace.model_validate({"id": truth, "file": "f", "prefix": prefix, "suffix": suffix, "truth": truth, **fields})


def trained_sample(text: str, truth: str, renderer: Renderer, id: str = "c", sampled: str = "nothing") -> Sample:
    """Return a sample at a place whose settled text is the truth."""
    at = place(text, truth)
    tokens = renderer.encode(sampled)
    return sample(
        id,
        prompt_token_ids=renderer.render(at.prefix, at.suffix),
        token_ids=tokens,
        logprobs=[-0.5] * len(tokens),
        settled_token_ids=renderer.encode(truth),
    )


def reader(store: MemoryStore, order: Order = "psm") -> TrainedText:
    return TrainedText(store, TOKENIZER, Renderer(TOKENIZER, order, 160, 60))


IN_LIMITER = "b = &bucket{tokens: l.burst, filled: now}"
ELSEWHERE = "l.buckets[client] = b"
IN_ORDERS = 'return nil, fmt.Errorf("order %d: %w", id, err)'


@pytest.mark.parametrize("order", ["psm", "spm"])
def test_a_place_is_trained_on_where_a_sample_holds_what_was_written_there(order: Order) -> None:
    text = reader(MemoryStore(), order)
    hashes = text.of_samples(to_parquet([trained_sample(CODE[0], IN_LIMITER, text.renderer)]))
    assert is_trained(place(CODE[0], IN_LIMITER), hashes)
    assert is_trained(place(CODE[0], ELSEWHERE), hashes)  # it stands in the sample's suffix
    assert not is_trained(place(CODE[1], IN_ORDERS), hashes)
    moved = CODE[1].replace("var order Order", IN_LIMITER + "\n" + "\n".join(CODE[0].split(IN_LIMITER)[1].splitlines()[:4]))
    assert is_trained(place(moved, IN_LIMITER), hashes)


def test_the_window_around_a_place_does_not_count_before_the_place_is_written() -> None:
    text = reader(MemoryStore())
    written = trained_sample(CODE[0].replace(ELSEWHERE, ""), IN_LIMITER, text.renderer)
    hashes = text.of_samples(to_parquet([written]))
    assert is_trained(place(CODE[0], IN_LIMITER), hashes)
    assert not is_trained(place(CODE[0], ELSEWHERE), hashes)


def test_what_was_sampled_counts_as_what_was_written_does() -> None:
    text = reader(MemoryStore())
    sampled = trained_sample(CODE[0], IN_LIMITER, text.renderer, sampled=IN_LIMITER)
    hashes = text.of_samples(to_parquet([sampled.model_copy(update={"settled_token_ids": ()})]))
    assert is_trained(place(CODE[0], IN_LIMITER), hashes)


def test_places_that_any_cycle_of_the_ancestry_trained_on_are_left_out_and_old_comparisons_are_used_again() -> None:
    store = MemoryStore()
    text = reader(store)
    found = Places("own", (place(CODE[0], IN_LIMITER), place(CODE[0], ELSEWHERE), place(CODE[1], IN_ORDERS)))
    read: list[str] = []

    def hashes_of(manifests: Sequence[Manifest]) -> tuple[Hashes, tuple[str, ...]]:
        read.extend(one.cycle for one in manifests)
        return text.of_cycles(manifests)

    def sealed(cycle: str, own: Hashes, ancestry: Sequence[Manifest]) -> HeldOutSet:
        read.clear()
        return prepare(store, LIMITS.evaluate, cycle, lambda *_: found, own, ancestry, hashes_of)[0]

    lines = [text.of_samples(to_parquet([trained_sample(CODE[1], IN_ORDERS, text.renderer)])), NONE]
    store.put_rows("cycles/c1/samples.parquet", [trained_sample(CODE[0].split(ELSEWHERE)[0], IN_LIMITER, text.renderer)])
    first = sealed("c2", NONE, [manifest("c1"), manifest("c0")])
    assert (first.trained, first.left_out, first.unchecked, read) == ((IN_LIMITER,), {"trained_on": 1}, ("c0",), ["c1", "c0"])
    store.put_rows("cycles/c2/samples.parquet", [])
    earlier = [manifest("c2", held_out=[first]), manifest("c1"), manifest("c0")]
    second = sealed("c3", lines[0], earlier)
    assert (second.trained, second.left_out, second.unchecked) == ((IN_LIMITER, IN_ORDERS), {"trained_on": 2}, ("c0",))
    assert read == []  # c2 was compared when it was sealed, with everything before
    changed = replace(found, places=found.places[1:])
    found = changed
    assert sealed("c3", NONE, earlier).trained == () and read == ["c2", "c1", "c0"]
    whole = scored_sets(store, manifest("c3", held_out=[second]), LIMITS.evaluate, lambda _: (NONE, ()), tuple)[0]
    assert [one.id for one in whole.scored] == [ELSEWHERE] and len(whole.completed.places) == 3


def test_a_cycle_without_a_place_to_score_is_not_judged() -> None:
    store = MemoryStore()
    one = sets.write(store, Places("own", (place(CODE[0], IN_LIMITER),))).model_copy(update={"trained": (IN_LIMITER,)})
    with pytest.raises(NoPlaces, match=r"c1: its held-out sets \['own'\].*evaluate.sets"):
        scored_sets(store, manifest("c1", held_out=[one]), LIMITS.evaluate, lambda _: (NONE, ()), tuple)


def written(number: int, time: float, user: str = "u", file: str = "", settled: str | None = None) -> tuple[object, object]:
    """Return a request and its rejection, after which the developer wrote something."""
    name = f"{number}-{user[0]}"
    text = f"settled_{number} = call({number})" if settled is None else settled
    asked = completion(name, time=time, user=user, file=file, prefix=f"value_{number} = ")
    rejection = feedback(name, time=time + 1, user=user, prefix=f"value_{number} = ", outcome="rejected", settled=text)
    return asked, rejection


@pytest.fixture
def store() -> MemoryStore:
    """Twenty requests of Ada and two of Bob before the window's end, in ten files, and four after it."""
    store, ada, bob = MemoryStore(), "a" * 32, "b" * 32
    pairs = [written(n, NOW + n, ada, f"{n % 10:032x}") for n in range(20)]
    pairs += [written(n, NOW + n, bob) for n in (30, 31)]
    pairs += [written(n, NOW + n, bob) for n in (95, 96)] + [written(n, NOW + n, ada) for n in (97, 98)]
    pairs += [written(99, NOW + 99, ada, settled="x)")]
    rows = [list(row) for row in zip(*pairs, strict=True)]
    store.put_rows("events/completions/date=2027-01-15/hour=08/a.parquet", rows[0])  # type: ignore[arg-type]
    store.put_rows("events/feedback/date=2027-01-15/hour=08/a.parquet", rows[1])  # type: ignore[arg-type]
    return store


@pytest.fixture
def registry() -> MemoryRegistry:
    registry = MemoryRegistry(v1={})
    registry.aliases["champion"] = "1"
    return registry


@pytest.fixture
def collected(store: MemoryStore, registry: MemoryRegistry) -> Collected:
    return collect(store, registry.client, LIMITS, NOW + 100)


def team_places(store: MemoryStore, collected: Collected, count: int = 100) -> Places:
    return team_set.places(store, collected.plan.partitions, collected.accounting, OWN, count, lines=1)


def test_the_teams_own_set_holds_later_text_and_files_that_training_never_touches(
    store: MemoryStore, collected: Collected
) -> None:
    classified = collected.accounting.classified
    held, trained = (set(classified.filter(bucket=name)["file"]) for name in ("held_out", "trained"))
    assert len(held) >= 2 and len(trained - {""}) >= 2 and not held & trained
    assert collected.accounting.buckets["held_out"] == 2 * len(held)
    found = team_places(store, collected)
    later = {one.id for one in found.places if one.file == one.id}
    assert later == {"95-b", "96-b", "97-a", "98-a"}
    assert {one.file for one in found.places} - later == held
    assert all(one.prefix == f"value_{one.id.split('-')[0]} = " and one.truth.startswith("settled_") for one in found.places)
    assert found.left_out["short"] == 1


def test_the_teams_own_set_has_places_at_which_developers_wrote_nothing(store: MemoryStore, collected: Collected) -> None:
    empty = pl.when(pl.col("id").is_in(["97-a", "98-a"])).then(pl.lit("")).otherwise("settled")
    accounting = replace(collected.accounting, classified=collected.accounting.classified.with_columns(settled=empty))
    found = team_set.places(store, collected.plan.partitions, accounting, OWN, 10, lines=1)
    (quiet,) = [place for place in found.places if not place.truth]
    assert quiet.id in ("97-a", "98-a") and quiet.prefix.startswith("value_9"), "a tenth of ten places"
    none = OWN.model_copy(update={"silent": 0.0})
    assert all(place.truth for place in team_set.places(store, collected.plan.partitions, accounting, none, 10, lines=1).places)
    other = OWN.model_copy(update={"languages": ("cobol",)})
    nothing = team_set.places(store, collected.plan.partitions, accounting, other, 10, lines=1)
    assert nothing.places == () and nothing.left_out["other_language"] > 0


def test_requests_that_name_no_file_are_in_one_where_they_show_the_same_document() -> None:
    """Else four requests in one line were four files, and the gate's intervals half as wide as they are."""
    lines = "".join(f"    value_{number} = compute({number})\n" for number in range(12))
    rows = [
        {"id": f"{user}{n}", "time": NOW + n, "project": "p", "user": user, "file": "", "prefix": f"def {name}():\n{prefix}"}
        | {"suffix": f"\n\n\ndef after_{name}():\n{after}"}
        for user, name, prefix, after in (("u", "one", lines, lines), ("v", "one", lines, lines), ("w", "two", "    x", ""))
        for n in range(3)
    ]
    other = lines.replace("value", "other").replace("compute", "total")
    rows[2] |= {"prefix": f"def three():\n{other}", "suffix": other}
    named = rows[3] | {"id": "named", "time": NOW + 9, "file": "f"}
    same = {"u0": "u0", "u1": "u0", "v0": "v0", "v1": "v0", "v2": "v0"}
    others = {id: id for id in ("u2", "w0", "w1", "w2")}
    assert team_set.files_of([*rows, named]) == same | others | {"named": "f"}


def test_users_who_are_not_known_give_no_places(store: MemoryStore, collected: Collected) -> None:
    user = team_places(store, collected).places[0].user
    known = collected.accounting.classified.with_columns(admitted=pl.col("user") != user)
    accounting = replace(collected.accounting, classified=known)
    found = team_set.places(store, collected.plan.partitions, accounting, OWN, 100, lines=1)
    assert found.places and user not in {place.user for place in found.places}
    assert found.left_out["new_user"] > 0


def test_developers_take_turns_in_a_set_that_is_smaller_than_what_they_wrote(store: MemoryStore, collected: Collected) -> None:
    found = team_places(store, collected, 4)
    assert sorted(one.user[0] for one in found.places) == ["a", "a", "b", "b"]
    assert found.left_out["more_than_asked_for"] > 0


@pytest.mark.parametrize(
    ("settled", "whole", "lines", "truth"),
    [
        ("a\nb", True, 1, "a"),
        ("a\nb", True, 0, "a\nb"),
        ("a\nb", False, 0, "a"),
        ("a", False, 1, None),
        ("a", True, 1, "a"),
    ],
)
def test_a_line_counts_where_its_end_is_known(settled: str, whole: bool, lines: int, truth: str | None) -> None:
    assert team_set.truth_of(settled, whole, lines) == truth


def contest(folder: Path, held_out: Sequence[ScoredSet], models: FixedText) -> Contest:
    """Return what stands for a candidate and its champion."""
    checkpoints = (fake_models.write(folder / name, name) for name in ("candidate", "champion"))
    return Contest(*checkpoints, models, tuple(held_out))


def test_forgetting_a_user_and_retention_reach_the_teams_own_set_and_its_completions(
    store: MemoryStore, registry: MemoryRegistry, collected: Collected, tmp_path: Path
) -> None:
    found = team_places(store, collected)
    one = prepare(store, LIMITS.evaluate, "cycle-000001", lambda *_: found, NONE, (), lambda _: (NONE, ()))[0]
    sealed = manifest("cycle-000001", held_out=[one])
    store.put_json("cycles/cycle-000001/manifest.json", sealed)
    store.put_rows("cycles/cycle-000001/samples.parquet", [])
    held_out = scored_sets(store, sealed, LIMITS.evaluate, lambda _: (NONE, ()), tuple)
    # A model that repeats the code before the cursor leaves the team's text in its completions.
    models = FixedText(lambda folder, prompt: prompt[-12:])
    evaluate.evaluate(store, LIMITS, contest(tmp_path, held_out, models), "cycle-000001")
    report = store.get_json("cycles/cycle-000001/evaluation.json")
    assert report["metrics"]["candidate"]["own"]["exact"]["places"] == len(report["positions"]) == len(found.places)
    assert (report["held_out"][0]["sha256"], report["held_out"][0]["places"]) == (one.places.sha256, len(found.places))
    assert {(row["completion"], row["truth"]) for row in report["positions"]} == {("", "")}
    kept = [key for key in store.objects if "held-out-completions" in key]
    assert len(kept) == 4 and all(key.startswith("cycles/cycle-000001/") for key in kept)
    made = len(models.sampled)
    evaluate.evaluate(store, LIMITS, contest(tmp_path, held_out, models), "cycle-000001")
    assert len(models.sampled) == made == 4, "a cycle that goes on finds its completions"
    store.put_json("cycles/cycle-000001/outcome.json", {"cycle": "cycle-000001", "result": "refused", "reason": ""})
    forget(store, registry.client, request("a" * 32, "", NOW + 200, "operator", "she asked"), NOW + 200, dry_run=False)
    assert {place.user[0] for place in sets.read(store, one).places} == {"b"}
    for key in kept:
        assert {row.user[0] for row in store.get_rows(key, HeldOutCompletion)} == {"b"}
    for key, body in store.objects.items():
        assert b"settled_97" not in body and b"value_97" not in body, key
    retain(store, registry.client, LIMITS, NOW + 400 * 86_400, dry_run=False)
    assert not store.objects.keys() & {one.places.key, *kept}


def test_a_manifest_without_sets_is_scored_on_those_of_the_settings_compared_with_all_that_was_trained(
    store: MemoryStore,
) -> None:
    packages = HeldOut(name="packages", kind="packages", silent=0.0)
    settings, sealed = Evaluate(samples=12, sets=(packages,)), manifest("c1")
    asked: list[list[str]] = []

    def hashes_of(manifests: Sequence[Manifest]) -> tuple[Hashes, tuple[str, ...]]:
        asked.append([one.cycle for one in manifests])
        place = build(settings.sets[0], settings).places[0]
        return union([shingles_of_place(place.prefix, place.truth, place.suffix)]), ("c0",)

    found = scored_sets(store, sealed, settings, hashes_of, lambda: [manifest("c0")])
    assert asked == [["c1", "c0"]]
    assert (len(found[0].places), len(found[0].scored)) == (12, 11)
    assert (found[0].left_out["trained_on"], found[0].unchecked) == (1, ("c0",))


def test_a_place_that_the_cycle_trained_on_is_left_out_though_sealing_missed_it(store: MemoryStore) -> None:
    text = reader(store)
    places = Places("own", (place(CODE[0], IN_LIMITER), place(CODE[1], IN_ORDERS)))
    one = sets.write(store, places)
    store.put("samples", to_parquet([trained_sample(CODE[0], IN_LIMITER, text.renderer)]))
    sealed = manifest("c1", held_out=[one], samples="samples")
    (found,) = scored_sets(store, sealed, LIMITS.evaluate, text.of_cycles, tuple)
    assert [place.id for place in found.scored] == [IN_ORDERS] and found.left_out == {"trained_on": 1}


def test_a_cycle_of_a_team_that_writes_typescript_and_go_is_evaluated_on_both(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guardrails, "MIN_PLACES", 10)
    for module in (guardrails, paired, slices):
        monkeypatch.setattr(module, "LEAST_FILES", 2)
    shop = HeldOut(name="shop", kind="directory", path=ROOT / "tests/data/code", share=1.0, places=60, silent=0.0)
    gate = Gate(min_places=30)
    settings = Settings(evaluate=Evaluate(sets=(shop,), gate=gate))
    text = reader(store)
    body = to_parquet([trained_sample(CODE[0], IN_LIMITER, text.renderer)])
    held_out = prepare(store, settings.evaluate, "c1", lambda *_: Places("", ()), text.of_samples(body), (), text.of_cycles)
    store.put("samples", body)
    sealed = manifest("c1", held_out=held_out, samples="samples")
    scored = scored_sets(store, sealed, settings.evaluate, text.of_cycles, tuple)
    model = settings.model
    renderer = Renderer(TOKENIZER, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)
    truths = {TOKENIZER.decode(renderer.render(p.prefix, p.suffix)): p for p in scored[0].places}

    def write(folder: str, prompt: str) -> str:
        """Write the true text; the candidate does in Go only."""
        there = truths[prompt]
        return there.truth if folder == "champion" or there.language == "go" else "?"

    models = FixedText(write)
    result = evaluate.evaluate(store, settings, contest(tmp_path, scored, models), "c1")
    assert {(name, count) for name, count, _ in models.sampled} == {("champion", 60), ("candidate", 60)}
    report = store.get_json("cycles/c1/evaluation.json")
    assert len(held_out[0].trained) > 0 and len(report["positions"]) == 60 - len(held_out[0].trained)
    assert {position["file"] for position in report["positions"]} >= {"web/src/cart.ts", "service/main.go"}
    assert report["metrics"]["champion"]["shop"]["first_line"]["places"] == len(report["positions"])
    assert report["held_out"][0]["left_out"]["trained_on"] == len(held_out[0].trained)
    found = {finding.slice: finding.verdict for finding in result.findings if finding.slice.startswith("language")}
    assert result.verdict == "failed" and found["language: ts"] == "failed" and found["language: go"] == "passed"
