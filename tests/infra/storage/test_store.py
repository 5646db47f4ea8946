"""The object store: round trips on the stack's server, conditional puts also on a server that honours them."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSPreparedRequest
from botocore.exceptions import ClientError

from infra.records import ObjectReference
from infra.registry.client import REMOVED_TAG
from infra.settings.schema import Store
from infra.storage.store import (
    CHECKSUMS,
    AlreadyExists,
    ConditionalPutsIgnored,
    Corrupt,
    Incomplete,
    ObjectStore,
    Refused,
    Unreachable,
    from_parquet,
    sha256,
    to_parquet,
)
from tasks.experiments.reports import recompute
from tasks.experiments.reports.export import NotExported, export

ROWS = [ObjectReference(key="é 试", sha256="0", rows=3, last=0.5), ObjectReference(key="", sha256="", rows=0)]


@pytest.fixture(params=["local server", "strict server"])
def any_store(request: pytest.FixtureRequest) -> ObjectStore:
    return request.getfixturevalue("store" if request.param == "local server" else "strict_store")


def test_put_returns_the_checksum_and_get_returns_the_bytes(any_store: ObjectStore) -> None:
    assert any_store.put("t/bytes", b"\x00abc") == sha256([b"\x00a", b"bc"])
    assert any_store.get("t/bytes") == b"\x00abc"


def test_equal_bytes_can_be_written_again(any_store: ObjectStore) -> None:
    assert any_store.put("t/again", b"x") == any_store.put("t/again", b"x")


def test_a_missing_object_raises_a_key_error_with_its_key(any_store: ObjectStore) -> None:
    assert not any_store.exists("t/none")
    with pytest.raises(KeyError, match="t/none"):
        any_store.get("t/none")


@pytest.mark.parametrize("text", ["../x", "/x", "a/../b", "a\nb"])
def test_a_text_that_is_no_id_is_no_experiment(any_store: ObjectStore, text: str, tmp_path: Path) -> None:
    with pytest.raises(recompute.NoDecision, match="expected the id of an experiment that has ended"):
        recompute.read(any_store, text)
    with pytest.raises(NotExported, match="does not exist; expected the id of an experiment"):
        export(any_store, text, tmp_path, 0.0)


def test_keys_returns_the_sorted_keys_under_a_prefix(any_store: ObjectStore) -> None:
    for key in ("t/list/b", "t/list/a/1", "t/lists"):
        any_store.put(key, b"")
    assert list(any_store.keys("t/list/")) == ["t/list/a/1", "t/list/b"]
    assert list(any_store.keys("t/nothing/")) == []


def test_rows_are_unchanged_by_a_round_trip(any_store: ObjectStore) -> None:
    any_store.put_rows("t/rows.parquet", ROWS)
    assert any_store.get_rows("t/rows.parquet", ObjectReference) == ROWS


def test_equal_rows_give_equal_parquet_bytes() -> None:
    assert to_parquet(ROWS) == to_parquet(ROWS)
    assert from_parquet(to_parquet(ROWS), ObjectReference) == ROWS


def test_json_is_unchanged_by_a_round_trip(any_store: ObjectStore) -> None:
    any_store.put_json("t/record.json", ROWS[0])
    assert ObjectReference.model_validate(any_store.get_json("t/record.json")) == ROWS[0]


def test_put_new_refuses_an_existing_key(any_store: ObjectStore) -> None:
    any_store._client.delete_object(Bucket=any_store.bucket, Key="t/new")
    any_store.put_new("t/new", b"first")
    with pytest.raises(AlreadyExists, match="t/new"):
        any_store.put_new("t/new", b"second")
    assert any_store.get("t/new") == b"first"


def test_the_server_refuses_a_second_writer_whose_look_up_missed_the_object(
    strict_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict_store.put("t/race", b"first")
    # The look-up misses the object, as if the other writer wrote right after it.
    monkeypatch.setattr(strict_store, "exists", lambda key: False)
    with pytest.raises(AlreadyExists):
        strict_store.put_new("t/race", b"second")
    assert strict_store.get("t/race") == b"first"


def test_one_of_many_concurrent_writers_succeeds(any_store: ObjectStore) -> None:
    """The lock chooses the writer on the local server, the server itself elsewhere."""
    any_store.delete("t/many")
    winners: list[int] = []

    def write(number: int) -> None:
        try:
            any_store.put_new("t/many", str(number).encode())
        except AlreadyExists:
            return
        winners.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(number).encode() for number in winners] == [any_store.get("t/many")]


def test_a_server_that_ignores_conditional_puts_is_detected(any_store: ObjectStore) -> None:
    any_store.check_conditional_puts()
    unlocked = ObjectStore(any_store._client, any_store.bucket)
    if any_store._lock is None:
        unlocked.check_conditional_puts()
    else:
        with pytest.raises(ConditionalPutsIgnored, match="TABLOOP_STORE__LOCK"):
            unlocked.check_conditional_puts()


def test_a_deleted_object_is_absent_and_can_be_deleted_again(any_store: ObjectStore) -> None:
    any_store.put("t/removed", b"1")
    any_store.delete("t/removed")
    any_store.delete("t/removed")
    assert not any_store.exists("t/removed")


def test_a_directory_is_unchanged_by_a_round_trip(any_store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/config.json").write_text("{}")
    (tmp_path / "in/sub/weights").write_bytes(b"\x01" * 1000)
    any_store.put_directory("t/model", tmp_path / "in")
    any_store.get_directory("t/model", tmp_path / "out")
    assert (tmp_path / "out/config.json").read_text() == "{}"
    assert (tmp_path / "out/sub/weights").read_bytes() == b"\x01" * 1000


def note_size(sizes: list[int], ranges: list[str], request: AWSPreparedRequest, **_: object) -> None:
    sizes.append(int(request.headers.get("Content-Length") or 0))
    ranges += [request.headers["Range"].decode()] if "Range" in request.headers else []


def test_a_large_file_goes_and_comes_in_parts(any_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.storage.parts.PART_BYTES", 5 << 20)  # the least of S3
    sizes, ranges = list[int](), list[str]()
    any_store._client.meta.events.register_first("before-send.s3", note := partial(note_size, sizes, ranges))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/weights").write_bytes(bytes(range(256)) * (11 << 12))
    checksums = any_store.put_directory("t/large", tmp_path / "in")
    any_store.get_directory("t/large", tmp_path / "out")
    any_store._client.meta.events.unregister("before-send.s3", note)
    assert checksums == {"weights": sha256([(tmp_path / "in/weights").read_bytes()])}
    assert max(sizes) == 5 << 20, "AWS refuses more than 5 GiB in one request"
    assert (tmp_path / "out/weights").read_bytes() == (tmp_path / "in/weights").read_bytes()
    assert ranges == ["bytes=5242880-10485759", "bytes=10485760-15728639"], "a part is held in memory, and not the file"


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 21])
def test_a_file_of_any_size_is_read(any_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("infra.storage.parts.PART_BYTES", 10)
    body = bytes(range(size))
    digest = any_store.put(f"t/sized-{size}", body)
    assert any_store.get_file(f"t/sized-{size}", tmp_path / "got") == digest
    assert (tmp_path / "got").read_bytes() == body


@pytest.mark.parametrize("name", ["../stray", "/stray", "sub/../../stray"])
def test_a_file_outside_the_directory_is_refused(any_store: ObjectStore, tmp_path: Path, name: str) -> None:
    any_store.put_json("t/stray/model/checksums.json", {name: any_store.put("t/stray/stray", b"x")})
    with pytest.raises(Corrupt, match=rf"t/stray/model/{CHECKSUMS}: the file '{name}' lies outside"):
        any_store.get_directory("t/stray/model", tmp_path / "out")
    assert not (tmp_path / "stray").exists()


def test_an_upload_that_fails_leaves_no_parts(strict_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.storage.parts.PART_BYTES", 5 << 20)
    (tmp_path / "weights").write_bytes(bytes(6 << 20))
    monkeypatch.setattr(strict_store._client, "complete_multipart_upload", lambda **_: (_ for _ in ()).throw(OSError("cut")))
    with pytest.raises(Unreachable, match="t/part"):
        strict_store.put_file("t/part", tmp_path / "weights")
    assert not strict_store.exists("t/part")
    assert not strict_store._client.list_multipart_uploads(Bucket=strict_store.bucket).get("Uploads")


@pytest.mark.parametrize("written", [True, False])
def test_an_upload_whose_last_answer_was_lost_is_whole(
    strict_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """boto3 asks again, and MinIO or R2 knows the upload no more."""
    monkeypatch.setattr("infra.storage.parts.PART_BYTES", 5 << 20)
    key, complete = f"t/lost-{written}", strict_store._client.complete_multipart_upload
    (tmp_path / "weights").write_bytes(bytes(6 << 20))

    def lost(**request: Any) -> None:
        if written:
            complete(**request)
        answer: Any = {"Error": {"Code": "NoSuchUpload"}, "ResponseMetadata": {"HTTPStatusCode": 404}}
        raise ClientError(answer, "CompleteMultipartUpload")

    monkeypatch.setattr(strict_store._client, "complete_multipart_upload", lost)
    if written:
        assert strict_store.put_file(key, tmp_path / "weights") == sha256([strict_store.get(key)])
    else:
        with pytest.raises(Refused, match="NoSuchUpload"):
            strict_store.put_file(key, tmp_path / "weights")


def test_reading_a_directory_without_checksums_is_refused(any_store: ObjectStore, tmp_path: Path) -> None:
    any_store.put("t/half/config.json", b"{}")
    for read in (lambda: any_store.get_directory("t/half", tmp_path), lambda: any_store.directory_sha256("t/half")):
        with pytest.raises(Incomplete) as raised:
            read()
        message = str(raised.value)
        assert message.startswith(f"s3://{any_store.bucket}/t/half: {CHECKSUMS} is missing"), (
            "the message has no quotes, unlike KeyError's"
        )
        assert REMOVED_TAG in message


def test_a_directory_that_loses_a_file_meanwhile_is_incomplete(any_store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"x")
    any_store.put_directory("t/removed-now", tmp_path)
    any_store.delete("t/removed-now/weights")
    with pytest.raises(Incomplete, match=rf"t/removed-now: weights is missing: .*retention.*{REMOVED_TAG}"):
        any_store.get_directory("t/removed-now", tmp_path / "out")


def test_a_file_with_a_wrong_checksum_is_reported_as_corrupt(any_store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"right")
    any_store.put_directory("t/changed", tmp_path)
    any_store.put("t/changed/weights", b"wrong")
    with pytest.raises(Corrupt, match="t/changed/weights"):
        any_store.get_directory("t/changed", tmp_path / "out")


def test_ensure_bucket_can_be_repeated(any_store: ObjectStore) -> None:
    any_store.put("t/kept", b"1")
    assert not any_store.ensure_bucket()
    assert any_store.get("t/kept") == b"1"


def test_a_bucket_is_created_in_the_region_of_the_settings(moto: str) -> None:
    settings = Store(bucket="in-frankfurt", endpoint=moto, region="eu-central-1", access_key="k", secret_key="s")
    assert ObjectStore.connect(settings).ensure_bucket(), "AWS, and moto as AWS, refuses a request without the region"
    assert not ObjectStore.connect(settings).ensure_bucket()


def test_missing_credentials_are_an_error_that_names_the_settings(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(Refused, match=r"Unable to locate credentials.*TABLOOP_STORE__ACCESS_KEY"):
        ObjectStore.connect(Store(endpoint=moto)).ensure_bucket()
