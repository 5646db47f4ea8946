"""Own code as samples and held-out places: files apart, no copy, no secret, shares of files and repositories."""

import os
import re
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from typing import Literal

import pytest
from tokenizers import Tokenizer

from infra.model.fim import Renderer
from infra.records import Sample
from infra.redaction.redactor import Redactor
from infra.settings import ROOT, Settings
from infra.settings.schema import Collect, Evaluate, Groups, Train
from infra.storage.store import from_parquet
from tasks.evaluation.heldout.directory import read_code
from tasks.own_code import code, places, repository
from tasks.own_code.holes import holes_of
from tasks.own_code.places import draw, share_of_file
from tasks.own_code.repository import NoCode
from tasks.steps.train import weight_shares_of
from tasks.trainer.options import UpdateSettings
from tasks.trainer.update.targets import taught_by
from tests.tasks.made import manifest, sample

SECRET = 'PASSWORD = "hunter2-Xk29fQz81LmP"'
SERVICE, WEB = ROOT / "tests/data/code/service", ROOT / "tests/data/code/web"


def body(name: str, functions: int = 12) -> str:
    """Return a module of functions that no other name has."""
    parts = [
        f"def {name}_{n}(value, {name}_limit):\n    total = value * {n} + {name}_limit\n    if total > {name}_limit:\n"
        f"        return {name}_limit - {n}\n    return total + {n}\n"
        for n in range(functions)
    ]
    return "\n\n".join(parts)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A repository of ten files, with a copy, a file that holds a secret, and files that are no code."""
    root = tmp_path / "shop"
    (root / "lib").mkdir(parents=True)
    for name in "abcdefghij":
        (root / f"lib/{name}.py").write_text(body(f"word{name}"))
    (root / "lib/copy_of_a.py").write_text(body("worda"))
    (root / "lib/keys.py").write_text(f"{body('wordk', 6)}\n\n{SECRET}\n\n\n{body('wordl', 6)}")
    (root / "logo.png").write_bytes(b"\x89PNG\r\n\xff\xfe" * 100)
    (root / "README.md").write_text("# Shop\n" * 100)
    (root / "node_modules").mkdir()
    (root / "node_modules/x.js").write_text("var a = 1;\n" * 100)
    return root


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(Tokenizer.from_file(str(ROOT / "infra/base_model/tokenizer.json")), "spm", 96, 24)


def settings(**collect: object) -> Settings:
    return Settings(collect=Collect(**collect), evaluate=Evaluate(samples=40))


def learned(sources: list[Path], renderer: Renderer, count: int = 400, **collect: object) -> code.LearnedCode:
    read = [repository.read(str(source), (), source.parent / "work") for source in sources]
    return code.learn(read, [""] * len(read), settings(**collect), renderer, Redactor(), "1", count)


def samples(found: code.LearnedCode) -> list[Sample]:
    return from_parquet(found.samples, Sample)


def test_files_are_trained_on_or_scored_and_copies_are_neither(shop: Path, renderer: Renderer) -> None:
    found = learned([shop], renderer)
    (one,), (held_out,) = found.repositories, found.held_out
    assert one.languages == {"py": one.places} and one.places == found.rows == len(samples(found))
    assert one.held_out_files == 2 and held_out.places
    assert one.files + one.held_out_files + one.left_out.get("copy", 0) + one.left_out.get("held_out_copy", 0) == 12
    assert one.left_out.get("copy", 0) + one.left_out.get("held_out_copy", 0) == 1, "of a.py and its copy one is left"
    decoded = "\n".join(renderer.tokenizer.decode_batch([s.settled_token_ids for s in samples(found)]))
    for place in held_out.places:
        stem = Path(place.file).stem
        assert f"word{stem}_limit" not in decoded, "held-out text is not trained on"
    assert {place.project for place in held_out.places} == {"shop"} and held_out.name == "own-shop"
    assert learned([shop], renderer).samples == found.samples, "the same for the same files"


def test_no_position_holds_a_secret(shop: Path, renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near the secret nothing is trained on or scored; far from it, the file still teaches."""
    monkeypatch.setattr("tasks.evaluation.positions.CONTEXT_CHARACTERS", 200)
    monkeypatch.setattr(places, "CONTEXT_CHARACTERS", 200)
    source = next(s for s in repository.read(str(shop), (), shop).sources if s.name == "lib/keys.py")
    drawn = draw([source], 400, Redactor())
    assert drawn.left_out["secret"] > 0 and len(drawn.positions) > 20
    assert not [p for p in drawn.positions if "hunter2" in p.prefix + p.truth + p.suffix]
    found = learned([shop], renderer)
    texts = renderer.tokenizer.decode_batch([[*s.prompt_token_ids, *s.settled_token_ids] for s in samples(found)])
    assert not [text for text in texts if "hunter2" in text]


def test_a_position_asks_for_the_rest_of_a_line_of_its_own_and_half_of_the_functions_are_unfinished(shop: Path) -> None:
    source = next(s for s in repository.read(str(shop), (), shop).sources if s.name == "lib/b.py")
    drawn = draw([source], 1000, Redactor()).positions
    text, stops = source.text, {hole.stop for hole in holes_of(source.text)}
    finished = 0
    for position in drawn:
        end = position.offset + len(position.truth)
        assert text[: position.offset].endswith(position.prefix) and text[position.offset : end] == position.truth
        assert "\n" not in position.truth and position.truth.strip() and text[end : end + 1] == "\n"
        rest = len(text) - len(position.suffix) if len(position.suffix) < places.CONTEXT_CHARACTERS else None
        assert rest is None or rest == end or rest in stops
        finished += rest == end
    assert len({text.count("\n", 0, position.offset) for position in drawn}) == len(drawn) == sum(map(bool, text.split("\n")))
    assert 0.3 < finished / len(drawn) < 0.75


def test_no_file_and_no_repository_has_more_than_its_share(shop: Path, tmp_path: Path, renderer: Renderer) -> None:
    big = shop / "lib/huge.py"
    big.write_text(body("wordhuge", 300))
    taken = Counter(p.file for p in draw(list(repository.read(str(shop), (), shop).sources), 300, Redactor()).positions)
    assert max(taken.values()) <= round(share_of_file(13) * 300)
    found = samples(learned([shop, WEB, SERVICE], renderer, 2000, max_project_share=0.4))
    of_project = Counter(s.project for s in found)
    weights: dict[str, float] = defaultdict(float)
    for row in found:
        weights[row.project] += len(row.settled_token_ids) * row.settled_weight
    assert set(of_project) == {"shop", "web", "service"}
    assert max(of_project.values()) <= 0.4 * len(found) + 1e-9 and max(weights.values()) <= 0.401 * sum(weights.values())


def test_a_repository_with_too_few_files_for_the_share_of_the_other_is_refused(tmp_path: Path, renderer: Renderer) -> None:
    folders = {"large": 20, "small": 4}
    for folder, files in folders.items():
        (tmp_path / folder).mkdir()
        for n in range(files):
            (tmp_path / folder / f"{folder}{n}.py").write_text(body(f"{folder}{'abcdefghijklmnopqrst'[n]}"))
    both = [tmp_path / folder for folder in folders]
    refusal = (
        r"project_share = 0.5, .* 0.105 of the weight: .* \(large: 16, small: 3\); set collect.max_project_share to (0\.\d+)"
    )
    with pytest.raises(NoCode, match=refusal) as raised:
        learned(both, renderer, max_project_share=0.5)
    named = re.search(refusal, str(raised.value))
    assert named and all(row.settled_weight > 0 for row in samples(learned(both, renderer, max_project_share=float(named[1]))))


def test_a_repository_without_a_position_asks_for_no_share_of_the_update(shop: Path, tmp_path: Path, renderer: Renderer) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    for name in "ab":
        (keys / f"{name}.py").write_text(f"{body(name, 3)}\n\n{SECRET}\n")
    found = learned([shop, keys], renderer, max_project_share=0.4)
    assert [one.places > 0 for one in found.repositories] == [True, False]
    sealed = manifest("cycle-000001").model_copy(update={"learned": found.repositories})
    assert weight_shares_of(sealed, Collect(max_project_share=0.4)) == {"project": 1.0}


@pytest.mark.parametrize(("files", "share"), [(1, 1.0), (2, 1.0), (4, 0.5), (20, 0.1), (500, 0.1)])
def test_the_share_of_a_file_leaves_room_for_few_files(files: int, share: float) -> None:
    assert share_of_file(files) == share


@pytest.mark.parametrize("actions", [("written", "served", "drawn"), ("served",), ("drawn",)])
def test_settings_of_the_update_let_written_text_alone_teach(actions: tuple[Literal["written", "served", "drawn"], ...]) -> None:
    given = Settings(train=Train(actions=actions, groups=Groups(places=9)))
    found = code.training_settings(given).train
    assert not found.draws and code.training_settings(given).collect == given.collect
    row = sample(outcome="unjudged", token_ids=[], logprobs=[], settled_token_ids=[7])
    assert taught_by([row], UpdateSettings(actions=found.actions, surrogate_weight=found.surrogate_weight)) == [row]


@pytest.mark.parametrize(
    ("source", "languages", "said"),
    [
        ("empty", (), r"empty: the directory has no file; next: `tabloop learn DIR`"),
        ("binary", (), r"none of its 1 files is hand-written code: text in UTF-8 of 400"),
        ("shop", ("go",), r"none of its \d+ files of code is in go; it has py \(12\): name one by --language"),
        ("nowhere", (), r"nowhere: no such directory on the machine of the flow"),
        ("shop/logo.png", (), r"is a file, expected a directory .*; next: `tabloop learn .*shop`"),
        ("ext::sh -c id", (), r"no such directory"),
        ("https://127.0.0.1:9/x.git", (), r"git cannot clone it"),
        ("https://ada:hunter2@127.0.0.1:9/x.git", (), r"https://\(hidden\)@127.0.0.1:9/x.git: git cannot clone it"),
    ],
)
def test_bad_input_is_named_with_the_next_command(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, languages: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary/a.py").write_bytes(b"\xff\xfe" * 400)
    with pytest.raises(NoCode, match=said) as refused:
        repository.read(source, languages, tmp_path / "work")
    assert ("hunter2" not in str(refused.value) and "next: " in str(refused.value)) or "name one by" in str(refused.value)


def test_a_single_file_and_two_sources_of_one_name_are_refused(shop: Path, tmp_path: Path, renderer: Renderer) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one/a.py").write_text(body("worda"))
    with pytest.raises(NoCode, match="has one file of code, expected two or more"):
        learned([tmp_path / "one"], renderer)
    with pytest.raises(NoCode, match="have the same name, of shop"):
        learned([shop, shop], renderer)


def test_a_link_out_of_a_repository_is_not_read(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "private.py").write_text(body("wordprivate"))
    (shop / "lib/link.py").symlink_to(tmp_path / "private.py")
    assert "lib/link.py" not in {source.name for source in repository.read(str(shop), (), tmp_path).sources}


def test_a_bare_repository_is_cloned(shop: Path, tmp_path: Path, renderer: Renderer) -> None:
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(shop))
    for words in (("init", "-q"), ("add", "lib"), ("commit", "-qm", "all")):
        subprocess.run([*git, *words], check=True)
    bare = tmp_path / "origin/shop.git"
    subprocess.run(("git", "clone", "-q", "--bare", str(shop), str(bare)), check=True)
    found = repository.read(str(bare), ("py",), tmp_path / "work")
    assert found.name == "shop" and len(found.sources) == 12 and found.root.is_relative_to(tmp_path / "work")
    other = repository.read(f"file://{bare}", ("py",), tmp_path / "work")
    with pytest.raises(NoCode, match="have the same name, of shop"):
        code.learn([found, other], ["", ""], Settings(), renderer, Redactor(), "1", 60)


@pytest.mark.parametrize(
    ("source", "name"),
    [("git@host.example:team/shop.git", "shop"), ("https://host.example/team/a b/", "a-b"), ("ssh://h/x.git", "x")],
)
def test_the_name_of_a_repository_is_that_of_its_folder(source: str, name: str) -> None:
    assert repository.name_of(source) == name


def test_a_file_whose_name_is_of_another_encoding_is_left_out(shop: Path, renderer: Renderer) -> None:
    with open(os.fsencode(shop) + b"/lib/caf\xe9.py", "w") as file:
        file.write(body("wordx"))
    assert "wordx" not in str(samples(learned([shop], renderer)))


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"\xef\xbb\xbf" + body("w").encode())
    (found,) = read_code(tmp_path)
    assert found.text == body("w") and any(hole.function for hole in holes_of(found.text))


def test_a_long_expression_has_holes() -> None:
    assert holes_of("X = (\n" + " +\n".join(f"    'a{n}'" for n in range(4000)) + ")\n")
