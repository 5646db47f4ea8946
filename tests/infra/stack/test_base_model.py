"""The base model's way: from a directory or another bucket to the bucket, and from there to a pod's own disk, verified."""

import json
import shutil
from pathlib import Path

import boto3
import pytest

from infra import cli
from infra.cli import errors
from infra.settings import ROOT, Settings, load
from infra.stack import seed
from infra.stack.seed import BASE_CHECKPOINT, NoBaseModel
from infra.storage.store import CHECKSUMS, Corrupt, Incomplete, ObjectStore

BASE = ROOT / "infra/base_model"
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@pytest.fixture
def settings(moto: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a pod: an S3 server, an empty bucket, and a disk without a model."""
    bucket = "base-" + str(abs(hash(request.node.name)))[:12]
    values = {"STORE__ENDPOINT": moto, "STORE__BUCKET": bucket, "STORE__ACCESS_KEY": "key", "STORE__SECRET_KEY": "secret"}
    values |= {"MODEL__BASE": str(tmp_path / "disk/base"), "STACK__STATE": str(tmp_path)}
    for name, value in values.items():
        monkeypatch.setenv(f"TABLOOP_{name}", value)
    loaded = load()
    ObjectStore.connect(loaded.store).ensure_bucket()
    return loaded


def model(folder: Path) -> Path:
    """Write a small model's files, which a team has in a folder."""
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copy(BASE / name, folder)
    return folder


def uploaded(settings: Settings, moto: str, folder: Path) -> str:
    """Upload files to a bucket of their own, by another program; return their address."""
    client = boto3.client(
        "s3", endpoint_url=moto, aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1"
    )
    bucket = f"{settings.store.bucket}-models"
    client.create_bucket(Bucket=bucket)
    for file in folder.iterdir():
        client.upload_file(str(file), bucket, f"qwen/base/{file.name}")
    return f"s3://{bucket}/qwen/base"


@pytest.mark.parametrize("kind", ["directory", "bucket"])
def test_a_base_model_is_brought_to_the_bucket_and_from_there_to_a_disk(
    kind: str, settings: Settings, moto: str, tmp_path: Path
) -> None:
    source = model(tmp_path / "given")
    seed.bring_base(settings, str(source) if kind == "directory" else uploaded(settings, moto, source))
    assert seed.fetch_base(settings)
    assert {name: (settings.model.base / name).read_bytes() for name in FILES} == {n: (source / n).read_bytes() for n in FILES}
    assert not seed.fetch_base(settings), "a pod that starts again has it"
    (settings.model.base / CHECKSUMS).unlink()
    assert seed.fetch_base(settings), "a fetch that was cut off"
    assert not list(settings.model.base.parent.glob("tabloop-base-*"))


def test_another_base_in_the_bucket_replaces_that_of_the_disk(settings: Settings, tmp_path: Path) -> None:
    source = model(tmp_path / "given")
    seed.bring_base(settings, str(source))
    seed.fetch_base(settings)
    (source / "generation_config.json").write_text('{"eos_token_id": 0}')
    seed.bring_base(settings, str(source))
    assert seed.fetch_base(settings) and (settings.model.base / "generation_config.json").read_text() == '{"eos_token_id": 0}'


def test_a_file_with_other_bytes_is_refused(settings: Settings, tmp_path: Path) -> None:
    seed.bring_base(settings, str(model(tmp_path / "given")))
    store = ObjectStore.connect(settings.store)
    store.put(f"{BASE_CHECKPOINT}/config.json", b"{}")
    with pytest.raises(Corrupt, match=r"config.json: SHA-256 .* expected"):
        seed.fetch_base(settings)
    assert not (settings.model.base / CHECKSUMS).exists()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("s3://{bucket}/nowhere", "no object lies there; expected s3://BUCKET/PREFIX"),
        ("s3://{bucket}", "no object lies there"),
        ("{folder}", r"config.json cannot be read.*name the files of a checkpoint"),
    ],
)
def test_a_source_without_a_model_is_named(source: str, expected: str, settings: Settings, tmp_path: Path) -> None:
    filled = source.format(bucket=settings.store.bucket, folder=tmp_path)
    with pytest.raises(NoBaseModel, match=f"--base {filled}: .*{expected}"):
        seed.bring_base(settings, filled)
    with pytest.raises(Incomplete):
        ObjectStore.connect(settings.store).checksums(BASE_CHECKPOINT)


def test_the_command_fetches_and_names_what_is_missing(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["base", "fetch"]) == errors.NO
    assert "`tabloop bootstrap --base FROM` uploads the base model" in capsys.readouterr().err
    seed.bring_base(settings, str(model(tmp_path / "given")))
    assert cli.main(["base", "fetch"]) == errors.DONE and cli.main(["base", "fetch"]) == errors.DONE
    assert capsys.readouterr().out == f"{settings.model.base}: fetched\n{settings.model.base}: unchanged\n"


def test_the_number_of_files_that_the_registry_notes_is_that_of_the_bucket(settings: Settings, tmp_path: Path) -> None:
    seed.bring_base(settings, str(model(tmp_path / "given")))
    assert set(json.loads(ObjectStore.connect(settings.store).checksums(BASE_CHECKPOINT))) == set(FILES)
