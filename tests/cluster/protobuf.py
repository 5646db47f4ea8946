"""Reads the two kinds that kubectl sends as protobuf: a Namespace and a Secret."""

import base64
from collections.abc import Iterator

from tests.cluster.resources import Object

MAGIC, MEDIA = b"k8s\x00", "application/vnd.kubernetes.protobuf"
NAME, LABELS, ANNOTATIONS = 1, 11, 12
"""Fields of the metadata."""
METADATA, DATA = 1, 2


def read(body: bytes) -> Object:
    """Return the object of a body: an envelope with its kind, and its own fields."""
    assert body.startswith(MAGIC)
    envelope = dict(fields(body[len(MAGIC) :]))
    version, kind = (part.decode() for _, part in fields(envelope[1]))
    assert kind in ("Namespace", "Secret"), kind
    own = list(fields(envelope[2]))
    metadata = list(fields(dict(own)[METADATA]))
    shown: Object = {"name": dict(metadata)[NAME].decode()}
    for name, number in (("labels", LABELS), ("annotations", ANNOTATIONS)):
        if pairs := dict(entry(part) for field, part in metadata if field == number):
            shown[name] = {key: value.decode() for key, value in pairs.items()}
    made: Object = {"apiVersion": version, "kind": kind, "metadata": shown}
    if kind == "Secret":
        data = dict(entry(part) for field, part in own if field == DATA)
        made["data"] = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return made


def entry(part: bytes) -> tuple[str, bytes]:
    """Return the key and the value of a map's entry; an empty value is left out."""
    found = dict(fields(part))
    return found[1].decode(), found.get(2, b"")


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields with a length: texts, bytes and messages. Numbers are passed over."""
    at = 0
    while at < len(message):
        key, at = number(message, at)
        size, at = number(message, at)
        if key & 7 == 2:
            yield key >> 3, message[at : at + size]
            at += size
        else:
            assert key & 7 == 0, f"wire type {key & 7}"


def number(message: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    found = shift = 0
    while True:
        byte = message[at]
        found, shift, at = found | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return found, at
