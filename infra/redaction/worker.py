"""A process that redacts texts: `python -m infra.redaction.worker`, started by serving/recording/long_texts.py.

It reads and writes frames on its standard input and output: four bytes of length (big-endian), then JSON. The first frame holds
the arguments of PersonalData, or null; each later one holds the fields of Texts. The answer holds the redacted texts and the
seconds of CPU time that they took.
"""

import json
import os
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, BinaryIO

from infra.redaction.redactor import Redactor
from infra.redaction.scanner import Detector
from infra.redaction.texts import Texts

LOWER_PRIORITY = 10
"""Priority: completions come first on machines with few cores."""
LENGTH = struct.Struct(">I")


def frame(value: Any) -> bytes:
    body = json.dumps(value).encode()
    return LENGTH.pack(len(body)) + body


def read_answer(body: bytes) -> tuple[Texts, float]:
    """Return the texts in an answer, and their CPU seconds."""
    answer = json.loads(body)
    return _texts(answer["texts"]), answer["seconds"]


def _texts(fields: Mapping[str, Any]) -> Texts:
    return Texts(**{**fields, "middles": tuple(fields["middles"]), "margins": tuple(fields["margins"])})


def _read(stream: BinaryIO) -> bytes:
    """Return the body of the next frame; empty at the end of the stream."""
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""


def personal_data(arguments: Mapping[str, Any] | None) -> Detector | None:
    """Return the detector of personal data; none without arguments. Its libraries take a tenth of a second to load."""
    if not arguments:
        return None
    from infra.redaction.personal import PersonalData

    return PersonalData(**arguments)


def main() -> int:
    """Redact until the standard input ends."""
    os.nice(LOWER_PRIORITY)
    arguments = json.loads(_read(sys.stdin.buffer))
    redactor = Redactor(personal_data(arguments))
    while body := _read(sys.stdin.buffer):
        began = time.process_time()
        redacted = redactor.redact(_texts(json.loads(body)))
        sys.stdout.buffer.write(frame({"texts": asdict(redacted), "seconds": time.process_time() - began}))
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
