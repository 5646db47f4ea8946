"""The answers of object stores, each through boto3 against a server that gives it as the store documents it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.cli import errors
from infra.records import ObjectReference
from infra.settings.schema import Store
from infra.storage.store import AlreadyExists, ConditionalPutsIgnored, ObjectStore, Refused, Unreachable
from tests.infra.storage.answering import Answer, S3Server, page, serving

RECORD = ObjectReference(key="k", sha256="0", rows=1, last=0.5)
OTHER = ObjectReference(key="other", sha256="0", rows=2, last=0.5)


@pytest.fixture
def server() -> S3Server:
    return S3Server()


@pytest.fixture
def address(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The server's address; boto3's pauses of up to 20 s are short."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda self, context: 0.01)
    with serving(server) as url:
        yield url


@pytest.fixture
def store(address: str) -> ObjectStore:
    return connected(address)


def connected(address: str, **fields: object) -> ObjectStore:
    """Return a store as the settings make it, with short pauses."""
    settings = {"bucket": "b", "endpoint": address, "access_key": "k", "secret_key": "s", **fields}
    store = ObjectStore.connect(Store.model_validate(settings))
    store._pause = 0.01
    return store


UNSUPPORTED = {
    "AWS before 2024, and others: NotImplemented": Answer(501, "NotImplemented", "A header you provided implies functionality"),
    "MinIO: XNotImplemented": Answer(501, "XNotImplemented"),
    "Backblaze B2: 501 without XML": Answer(501),
    "NotImplemented with status 400": Answer(400, "NotImplemented"),
    "InvalidArgument": Answer(400, "InvalidArgument", "Unsupported header 'if-none-match'"),
    "InvalidRequest": Answer(400, "InvalidRequest"),
    "UnsupportedHeader": Answer(400, "UnsupportedHeader"),
    "MethodNotAllowed": Answer(405, "MethodNotAllowed"),
}


@pytest.mark.parametrize("answer", UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_a_server_that_does_not_implement_conditional_puts_needs_a_lock(
    server: S3Server, store: ObjectStore, answer: Answer, tmp_path: Path
) -> None:
    server.always.append(Answer(answer.status, answer.code, answer.message, conditional=True))
    with pytest.raises(ConditionalPutsIgnored, match=rf"HTTP {answer.status}.*TABLOOP_STORE__LOCK") as raised:
        store.check_conditional_puts()
    assert errors.code_of(raised.value) == errors.WRONG_USE
    with pytest.raises(ConditionalPutsIgnored, match=f"HTTP {answer.status}"):
        store.put_once("once", RECORD)
    assert "b/once" not in server.objects
    locked = connected(store._client.meta.endpoint_url, lock=tmp_path / "lock")
    locked.check_conditional_puts()
    assert locked.put_once("once", RECORD) == RECORD
    assert locked.put_once("once", OTHER) == RECORD == ObjectReference.model_validate(locked.get_json("once"))
    assert not locked.add("once", OTHER)


def test_a_server_that_ignores_the_condition_is_refused(server: S3Server, store: ObjectStore) -> None:
    store.check_conditional_puts()
    server.always.append(Answer(200, conditional=True, does="executes"))
    with pytest.raises(ConditionalPutsIgnored, match=r"accepted a conditional put.*expected HTTP 412"):
        store.check_conditional_puts()


def test_a_bucket_with_object_lock_takes_every_write(server: S3Server, store: ObjectStore) -> None:
    """AWS refuses a write without a checksum there, as InvalidRequest, which a conditional write would take for its own."""
    words = "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock parameters"
    server.always.append(Answer(400, "InvalidRequest", words, method="PUT", without="Content-MD5"))
    store.check_conditional_puts()
    store.put("a", b"x")
    assert store.add("once", RECORD) and not store.add("once", OTHER)
    assert server.objects["b/a"] == b"x"


def test_an_address_that_is_no_object_store_is_refused_before_anything_is_written(server: S3Server, store: ObjectStore) -> None:
    server.always.append(Answer(200, body=b"<html>Console</html>"))
    with pytest.raises(Refused, match=r"store\.endpoint = .*wrote b'probe'.*read b'<html>"):
        store.check_conditional_puts()
    with pytest.raises(Refused, match=r"could not list s3://b/x: .*Expected the address of an S3 API"):
        list(store.keys("x"))


CONFLICTS = [(409, code) for code in ("ConditionalRequestConflict", "OperationAborted", "ConcurrentModification", "")]


@pytest.mark.parametrize(("status", "code"), CONFLICTS)
def test_a_conflict_is_repeated(server: S3Server, store: ObjectStore, status: int, code: str) -> None:
    server.planned.append(Answer(status, code, method="PUT"))
    assert store.put_once("once", RECORD) == RECORD
    assert ObjectReference.model_validate(store.get_json("once")) == RECORD
    server.planned.append(Answer(status, code, method="PUT"))
    store.put("plain", b"x")
    assert server.objects["b/plain"] == b"x"
    server.planned.append(Answer(status, code, method="DELETE"))
    store.delete("plain")
    assert "b/plain" not in server.objects
    # Another writer wins while this one waits.
    server.planned.append(Answer(status, code, method="PUT"))
    server.objects["b/once"] = OTHER.model_dump_json().encode()
    assert store.put_once("once", RECORD) == OTHER
    server.always.append(Answer(status, code, method="PUT"))
    with pytest.raises(Unreachable, match="could not write once s3://b/lasting: HTTP 409"):
        store.put_once("lasting", RECORD)
    assert sum(request[:2] == ("PUT", "/b/lasting") for request in server.requests) == 4
    server.planned.append(Answer(404, method="HEAD"))  # another writer's object comes after the look-up
    server.objects["b/lasting"] = OTHER.model_dump_json().encode()
    assert store.put_once("lasting", RECORD) == OTHER, "a read shows who won, although the write never does"


def test_another_409_is_refused_with_the_servers_words(server: S3Server, store: ObjectStore) -> None:
    server.always.append(Answer(409, "ObjectParentIsFile", "A parent of the key is a file", method="PUT"))
    with pytest.raises(Refused, match=r"HTTP 409.*A parent of the key is a file"):
        store.put("a/b", b"x")


LOST = {
    "no answer": Answer(0, does="executes", method="PUT", conditional=True),
    "500": Answer(500, "InternalError", does="executes", method="PUT", conditional=True),
    "a proxy's 504": Answer(504, body=b"<html>Gateway Time-out</html>", does="executes", method="PUT", conditional=True),
    "a proxy repeats": Answer(412, "PreconditionFailed", does="executes", method="PUT", conditional=True),
}


@pytest.mark.parametrize("answer", LOST.values(), ids=LOST.keys())
@pytest.mark.parametrize("lasting", [False, True])
def test_an_object_whose_answer_is_lost_is_known(server: S3Server, store: ObjectStore, answer: Answer, lasting: bool) -> None:
    (server.always if lasting else server.planned).append(answer)
    assert store.add("once", RECORD), "the object is this call's own"
    assert store.put_once("another", OTHER) == OTHER
    assert not store.add("once", OTHER)


def test_an_object_of_another_writer_is_never_taken_for_ones_own(server: S3Server, store: ObjectStore) -> None:
    server.planned.append(Answer(404, method="HEAD"))
    server.objects["b/once"] = OTHER.model_dump_json().encode()
    assert not store.add("once", RECORD)
    server.planned.append(Answer(404, method="HEAD"))
    assert store.put_once("once", RECORD) == OTHER
    for status in (304, 412):  # MinIO answered 304 to conditional puts
        server.planned += [Answer(404, method="HEAD"), Answer(status, method="PUT")]
        with pytest.raises(AlreadyExists):
            store.put_new("once", b"x")


def test_a_key_that_is_taken_and_absent_is_no_missing_object(server: S3Server, store: ObjectStore) -> None:
    server.always.append(Answer(412, "PreconditionFailed", conditional=True))
    with pytest.raises(Unreachable, match="a write found it taken, a read found nothing"):
        store.put_once("once", RECORD)


AWAY = {
    "500": Answer(500, "InternalError"),
    "502": Answer(502, body=b"<html>Bad Gateway</html>"),
    "503": Answer(503, "SlowDown"),
    "MinIO starts": Answer(503, "XMinioServerNotInitialized"),
    "504": Answer(504),
    "R2 and Google": Answer(429, "TooManyRequests", "Reduce your concurrent request rate for the same object."),
    "429 without XML": Answer(429),
    "AWS RequestTimeout": Answer(400, "RequestTimeout"),
    "408": Answer(408),
    "Cloudflare": Answer(522, body=b"<html>"),
    "Bandwidth": Answer(503, "BandwidthLimitExceeded"),
    "no answer": Answer(0),
}


@pytest.mark.parametrize("answer", AWAY.values(), ids=AWAY.keys())
def test_a_store_that_is_away_is_asked_again_and_then_named(server: S3Server, store: ObjectStore, answer: Answer) -> None:
    if answer.status not in (522,):
        server.planned += [answer] * 2
        store.put("a", b"x")
        assert server.objects["b/a"] == b"x"
    server.always.append(answer)
    for action, words in (
        (lambda: store.put("a", b"y"), "write"),
        (lambda: store.get("a"), "read"),
        (lambda: list(store.keys("")), "list"),
    ):
        with pytest.raises(Unreachable, match=rf"could not {words} s3://b/.*tabloop status") as raised:
            action()
        assert errors.code_of(raised.value) == errors.NOT_READY
    if answer.code != "RequestTimeout":  # a HEAD has no body to name it
        with pytest.raises(Unreachable):
            store.put_once("c", RECORD)


REFUSED = {
    "AccessDenied": (Answer(403, "AccessDenied"), r"store\.access_key"),
    "SignatureDoesNotMatch": (Answer(403, "SignatureDoesNotMatch"), r"store\.secret_key"),
    "InvalidAccessKeyId": (Answer(403, "InvalidAccessKeyId"), r"TABLOOP_STORE__ACCESS_KEY"),
    "R2: Unauthorized": (Answer(401, "Unauthorized"), r"store\.access_key"),
    "the clock": (Answer(403, "RequestTimeTooSkewed"), "clock"),
    "another region": (
        Answer(301, "PermanentRedirect", headers=(("x-amz-bucket-region", "eu-west-3"),)),
        r"another region \(eu-west-3\).*store\.region",
    ),
    "a new bucket elsewhere": (Answer(307, "TemporaryRedirect"), r"store\.region"),
    "the region of the signature": (Answer(400, "AuthorizationHeaderMalformed"), r"store\.region"),
    "R2's region": (Answer(400, "InvalidRegionName"), "auto"),
    "a redirect to https": (Answer(308, body=b"<html>"), "https://"),
    "an expired token": (Answer(400, "ExpiredToken"), "have expired"),
    "no bucket": (Answer(404, "NoSuchBucket"), r"store\.bucket.*tabloop bootstrap"),
    "Ceph's quota": (Answer(403, "QuotaExceeded"), "no room"),
    "MinIO's quota": (Answer(400, "XMinioAdminBucketQuotaExceeded"), "no room"),
    "MinIO's disk": (Answer(507, "XMinioStorageFull"), "no room"),
    "too large": (Answer(400, "EntityTooLarge"), "too large"),
    "too large for nginx": (Answer(413, body=b"<html>"), "client_max_body_size"),
    "changed on the way": (Answer(400, "XAmzContentSHA256Mismatch"), "other bytes"),
    "read-only": (Answer(405, "MethodNotAllowed"), "does not implement"),
}


@pytest.mark.parametrize(("answer", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_names_what_to_change(server: S3Server, store: ObjectStore, answer: Answer, words: str) -> None:
    server.always.append(answer)
    for action in (lambda: store.put("a", b"x"), lambda: list(store.keys("a"))):
        with pytest.raises(Refused, match=rf"could not (write|list) s3://b/a: .*{words}") as raised:
            action()
        assert errors.code_of(raised.value) == errors.WRONG_USE
    assert len(server.requests) <= 4, "a refusal is final; of a redirect boto3 asks where it leads"


def test_a_conditional_write_is_refused_like_any_other(server: S3Server, store: ObjectStore) -> None:
    server.always.append(Answer(403, "QuotaExceeded", method="PUT"))
    with pytest.raises(Refused, match="no room"):
        store.put_once("once", RECORD)
    server.always[:] = [Answer(404, "NoSuchBucket")]
    with pytest.raises(Refused, match=r"store\.bucket"):
        store.put_once("once", RECORD)


def test_an_object_that_is_missing_is_no_error_of_the_store(server: S3Server, store: ObjectStore) -> None:
    assert not store.exists("none")
    with pytest.raises(KeyError, match="s3://b/none"):
        store.get("none")
    server.planned.append(Answer(404, "NoSuchKey", method="DELETE"))  # Google's answer
    store.delete("none")
    for code in ("NoSuchBucket", "403"):
        server.planned.append(Answer(404 if code == "NoSuchBucket" else 403, code, method="GET"))
        with pytest.raises(Refused):
            store.get("none")
    server.planned.append(Answer(403, method="HEAD"))  # AWS, of a missing key, to who may not list
    with pytest.raises(Refused, match="may list, read, write"):
        store.exists("none")


def test_a_bucket_that_two_processes_make_at_once_is_made(server: S3Server, store: ObjectStore) -> None:
    for code in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists", "OperationAborted"):
        server.planned += [Answer(404, method="HEAD"), Answer(409, code, method="PUT")]
        assert store.ensure_bucket()
    server.always += [Answer(409, "BucketAlreadyExists", method="PUT"), Answer(403, method="HEAD")]
    server.planned.append(Answer(404, method="HEAD"))
    with pytest.raises(Refused, match="could not make the bucket"):
        store.ensure_bucket()


def tokens(keys: list[str], query: dict[str, str]) -> str:
    """Return pages of two, as AWS does."""
    start = int(query.get("continuation-token", 0))
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{start + 2}</NextContinuationToken>"
    return page(keys[start : start + 2], query, more if start + 2 < len(keys) else "<IsTruncated>false</IsTruncated>")


def without_tokens(keys: list[str], query: dict[str, str]) -> str:
    """Return pages of two without a token, as some gateways do."""
    left = [key for key in keys if key > query.get("start-after", "")]
    return page(left[:2], query, f"<IsTruncated>{str(len(left) > 2).lower()}</IsTruncated>")


def one_page_too_many(keys: list[str], query: dict[str, str]) -> str:
    """Announce more after the last key, as versitygw did."""
    start = query.get("continuation-token", "")
    left = [key for key in keys if key > start]
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{left[1]}</NextContinuationToken>" if len(left) > 1 else ""
    return page(left[:2], query, more or "<IsTruncated>false</IsTruncated>")


KEYS = ["a+b", "a b", "date=2027-01-15/é 试%20", "x", "y"]


@pytest.mark.parametrize("listing", [tokens, without_tokens, one_page_too_many])
def test_every_key_is_listed_page_by_page(server: S3Server, store: ObjectStore, listing: object) -> None:
    server.listing = listing  # type: ignore[assignment]  # one of the functions above
    for key in KEYS:
        store.put(key, key.encode())
    assert list(store.keys("")) == sorted(KEYS)
    assert [store.get(key).decode() for key in store.keys("")] == sorted(KEYS)
    assert [key for key, _ in store.written("")] == sorted(KEYS)


def stuck(keys: list[str], query: dict[str, str]) -> str:
    return page(keys[:2], query, "<IsTruncated>true</IsTruncated>")


def same_token(keys: list[str], query: dict[str, str]) -> str:
    return page(keys[:2], query, "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>")


@pytest.mark.parametrize("listing", [stuck, same_token])
def test_a_list_that_does_not_go_on_is_refused(server: S3Server, store: ObjectStore, listing: object) -> None:
    server.listing = listing  # type: ignore[assignment]  # one of the functions above
    for key in KEYS:
        store.put(key, b"")
    with pytest.raises(Refused, match=r"could not list s3://b/.*announces more.*The list is incomplete"):
        list(store.keys(""))


def test_no_request_carries_a_checksum_that_older_servers_refuse(server: S3Server, address: str) -> None:
    store, headers = connected(address), {}
    store._client.meta.events.register("before-send.s3", lambda request, **_: headers.update(request.headers))
    store.put("a", b"x")
    store.put_new("b", b"x")
    assert not [name for name in headers if name.lower().startswith(("x-amz-checksum", "x-amz-trailer", "x-amz-sdk-checksum"))]


def test_a_name_that_no_bucket_can_have_is_refused(address: str) -> None:
    with pytest.raises(Refused, match=r"store\.bucket"):
        connected(address, bucket="no bucket").put("a", b"")


@pytest.mark.parametrize("body", [b"404 page not found\n", b"<html>Not Found</html>", b""])
def test_a_proxys_404_is_no_missing_object(server: S3Server, store: ObjectStore, body: bytes) -> None:
    store.put_json("k", RECORD)
    server.always.append(Answer(404, body=body))
    with pytest.raises(Unreachable):
        store.find("k", ObjectReference)
    with pytest.raises(Unreachable):
        store.delete("k")


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 21])
def test_an_object_that_is_streamed_without_its_size_is_read_whole(
    server: S3Server, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("infra.storage.parts.PART_BYTES", 10)
    server.chunked = True
    digest = store.put("streamed", body := bytes(range(size)))
    assert store.get("streamed") == body
    assert store.get_file("streamed", tmp_path / "got") == digest and (tmp_path / "got").read_bytes() == body


def test_a_server_that_ignores_ranges_is_named(
    server: S3Server, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.storage.parts.PART_BYTES", 10)
    server.ranges = False
    store.put("large", bytes(21))
    with pytest.raises(Refused, match=r"could not read s3://b/large: .*Range: bytes=10-19 .*the server ignores ranges"):
        store.get_file("large", tmp_path / "got")
