"""The answers of an object store that is not obeyed, by kind, and the advice for each.

Kinds follow the documented errors of AWS S3, MinIO, Ceph RGW, Cloudflare R2, Google's XML API, rclone and versitygw. A server
names its error by a code in XML; an answer without XML (to HEAD, or from a proxy) has its HTTP status as the code.
"""

from collections.abc import Mapping
from typing import Any, Literal

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    InvalidRegionError,
    LoginError,
    MetadataRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    PaginationError,
    ParamValidationError,
    PartialCredentialsError,
    SSLError,
    SSOError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

Kind = Literal["missing", "taken", "conflict", "unsupported", "away", "refused"]
"""missing: no object has the key; taken: the condition of a write does not hold; conflict: nothing was done, repeat the request;
unsupported: the server does not implement the condition; away: no complete answer, or a temporary error; refused: everything
else, which a person must mend."""

TAKEN = frozenset({"PreconditionFailed", "ObjectAlreadyExists"})
CONFLICT = frozenset({"ConditionalRequestConflict", "OperationAborted", "ConcurrentModification", "Conflict", "409"})
UNSUPPORTED = frozenset(
    {
        *("NotImplemented", "XNotImplemented", "UnsupportedHeader", "UnsupportedArgument", "UnsupportedOperation"),
        *("InvalidArgument", "InvalidRequest", "MethodNotAllowed", "400", "405", "501"),
    }
)
"""Codes by which servers refuse the header of a conditional write; InvalidArgument and InvalidRequest with status 400."""
THROTTLED = frozenset(
    {
        *("SlowDown", "SlowDownRead", "SlowDownWrite", "TooManyRequests", "Throttling", "ThrottlingException"),
        *("RequestLimitExceeded", "RateLimitExceeded", "BandwidthLimitExceeded", "ServiceUnavailable"),
    }
)
TEMPORARY = frozenset({"RequestTimeout", "RequestTimeoutException", "InternalError", "ClientDisconnected", "IncompleteBody"})
FULL = frozenset(
    {
        *("QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull", "InsufficientCapacity", "TooManyObjects"),
        *("InsufficientStorage", "StorageFull", "StorageQuotaExceeded", "UserQuotaExceeded", "507"),
    }
)
TOO_LARGE = frozenset({"EntityTooLarge", "MaxMessageLengthExceeded", "413"})
CLOCK = frozenset({"RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture"})
ELSEWHERE = frozenset(
    {
        *("PermanentRedirect", "TemporaryRedirect", "Redirect", "AuthorizationHeaderMalformed", "301", "302", "307", "308"),
        *("IllegalLocationConstraintException", "InvalidLocationConstraint", "InvalidRegion", "InvalidRegionName"),
    }
)
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"})
NO_BUCKET = frozenset({"NoSuchBucket", "InvalidBucketName", "AllAccessDisabled"})
CHANGED = frozenset({"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"})
ARCHIVED = frozenset({"InvalidObjectState"})

FAILURES = (ClientError, BotoCoreError, ResponseParserError, HTTPError, OSError)
NO_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, MetadataRetrievalError)
WRONG = (InvalidRegionError, PaginationError, ParamValidationError, ResponseParserError)
NO_LOGIN = (NoAuthTokenError, TokenRetrievalError, SSOError, LoginError)

CHECK_KEYS = (
    "expected in store.access_key and store.secret_key (TABLOOP_STORE__ACCESS_KEY, TABLOOP_STORE__SECRET_KEY) a pair that may "
    "list, read, write and delete in the bucket, or neither, and then one that boto3 finds (environment, profile, instance role)"
)
CHECK_REGION = (
    "set store.region to the bucket's region (Cloudflare R2: auto) and store.endpoint to the address that answers for it, with "
    "https:// if the server redirects to it"
)


class CutOff(OSError):
    """The body of an answer is cut off or stalls, which boto3 does not retry."""


def status_of(error: Exception) -> int:
    """Return the HTTP status of an answer; 0 without one."""
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) if isinstance(error, ClientError) else 0


def code_of(error: Exception) -> str:
    """Return the server's code of an error, or the HTTP status where the answer has none; "" without an answer."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def kind_of(error: Exception, *, conditional: bool = False) -> Kind:
    """Return the kind of a failed request; `conditional`: it was a write that had a condition."""
    if not isinstance(error, ClientError):
        return "refused" if _is_wrong(error) else "away"
    code, status = code_of(error), status_of(error)
    if code in FULL | TOO_LARGE | CLOCK:  # some servers give them a status of the kinds below
        return "refused"
    if conditional and (code in TAKEN or status in (304, 412)):
        return "taken"
    if code in CONFLICT:
        return "conflict"
    if conditional and (status == 501 or (status in (400, 405) and code in UNSUPPORTED)):
        return "unsupported"
    if code in THROTTLED | TEMPORARY or status in (408, 425, 429, 499) or (status >= 500 and status != 501):
        return "away"
    if status == 404 and code in ("", "404") and not error.operation_name.startswith("Head"):
        return "away"  # a proxy's page: a store names what is missing, but to HEAD
    return "missing" if status == 404 and code not in NO_BUCKET else "refused"


def repeats(error: Exception, kind: Kind) -> bool:
    """Return whether to send a request once more: boto3 retries most temporary errors by itself, and no conflict."""
    if isinstance(error, ClientError):
        retried = error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0)
        return kind == "conflict" or (kind == "away" and not retried and status_of(error) < 500)
    return isinstance(error, CutOff)


def words_of(error: Exception) -> str:
    """Return an error with its HTTP status."""
    return f"HTTP {status}: {error}" if (status := status_of(error)) else str(error) or type(error).__name__


def advice(error: Exception) -> str:
    """Return which setting to change, or what to do, about a refused request."""
    code, status = code_of(error), status_of(error)
    if isinstance(error, NO_LOGIN) or code in EXPIRED:
        return f"The credentials have expired: log in again, or renew them; {CHECK_KEYS}"
    if isinstance(error, NO_CREDENTIALS):
        return f"`tabloop up` makes those of the local stack; else {CHECK_KEYS}"
    if code in CLOCK:
        return "Set this machine's clock (`timedatectl` shows whether NTP is on), then run the step again"
    if isinstance(error, ParamValidationError) or code in NO_BUCKET:
        return "Check store.bucket; `tabloop bootstrap` makes a bucket that is missing"
    if isinstance(error, SSLError):
        return (
            "store.endpoint begins with https://: expected a certificate that this machine trusts (AWS_CA_BUNDLE names another "
            "authority's file), or http:// where the server has none"
        )
    if isinstance(error, ResponseParserError):
        return "Expected the address of an S3 API in store.endpoint; this one answers with something else, such as a web page"
    if isinstance(error, PaginationError):
        return "The list is incomplete: use another server, or a newer release of it"
    if code in FULL:
        return "The store has no room: raise its quota, add storage, or remove old data (`tabloop retention`)"
    if code in TOO_LARGE:
        return "The object is too large for the server or a proxy before it: raise its limit (nginx: client_max_body_size)"
    if code in ELSEWHERE or 300 <= status < 400 or isinstance(error, InvalidRegionError):
        return f"The bucket answers elsewhere, or in another region{_place(error)}: {CHECK_REGION}"
    if code == "400":  # AWS gives HEAD no reason
        return f"The region may be another, or the credentials may have expired: {CHECK_REGION}; {CHECK_KEYS}"
    if code in CHANGED:
        return "The body arrived with other bytes: let no proxy before the store change requests"
    if code in ARCHIVED:
        return "The object is archived: restore it, and let no lifecycle rule of the bucket archive objects of tabloop"
    if status in (405, 501):
        return "The server does not implement this request: use another server (infra/docs/operations.md, The bucket)"
    return f"Check store.bucket, store.region; {CHECK_KEYS}"


def _place(error: Exception) -> str:
    """Return the region or the address that the server names; "" if it names none."""
    answer = error.response if isinstance(error, ClientError) else {}
    details, headers = answer.get("Error", {}), answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    named = details.get("Region") or headers.get("x-amz-bucket-region") or details.get("Endpoint") or headers.get("location")
    return f" ({named})" if named else ""


def _is_wrong(error: Exception) -> bool:
    """Return whether an error without an answer is one of settings, which no retry mends."""
    if isinstance(error, SSLError):
        return any(words in str(error) for words in ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"))
    return isinstance(error, (*NO_CREDENTIALS, *NO_LOGIN, *WRONG))


def follow_no_redirect(context: dict[str, Any], **_: Any) -> None:
    """Let boto3 follow no redirect of a request for the bucket's region, which it sends to learn where a redirect leads: a server
    that redirects every request (to https) would be asked without end."""
    context.setdefault("s3_redirect", {})["redirected"] = True


def following(page: Mapping[str, Any], start: dict[str, str]) -> dict[str, str] | None:
    """Return where a listing goes on after a page, as parameters of list_objects_v2; None after the last page.

    Args:
        page: the answer.
        start: the parameters that it answers.

    Raises:
        PaginationError: the server announces more, and repeats the page.
        ResponseParserError: the answer is no listing, such as the page of a web server.
    """
    if not page.keys() & {"Name", "Prefix", "KeyCount", "IsTruncated", "Contents"}:
        raise ResponseParserError("the answer is no list of objects")
    token = page.get("NextContinuationToken")
    if not page.get("IsTruncated", token is not None):
        return None
    # Some servers give no token: then the listing goes on after the last key.
    entries = page.get("Contents", [])
    place = {"ContinuationToken": token} if token else {"StartAfter": entries[-1]["Key"]} if entries else start
    if place == start:
        raise PaginationError(message=f"the server announces more after {start or 'the first page'}, and repeats it")
    return place
