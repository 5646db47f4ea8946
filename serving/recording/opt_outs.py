"""Remembers the requests of users who opted out, so that later events of these requests are recorded without text.

An editor may send the opt-out header with completions and not with feedback. An event belongs to such a request if it names its
completion id, if it has the editor's id of an earlier event of it, or if it has its cursor position: the same suffix, and a
prefix that begins with the request's (infra/docs/how/labels.md, "The join"). Ids and positions are stored as keyed hashes, also
in a file that a restarted app reads. Every replica of the app has its own: have the balancer send a user's requests and events to
one replica.
"""

import hashlib
import json
import logging
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

from infra.model.line_ends import normal_context
from infra.records import Feedback
from infra.stack import files

log = logging.getLogger(__name__)
MOST = 20_000
"""Number of the latest requests that are remembered."""
MOST_TYPED = 512
"""Most characters by which an event's prefix may be longer than its request's, since the developer types over the completion."""
TAIL = 512
"""Characters at the end of a request's prefix by which an event's prefix is compared."""
LEAST_SHARED = 64
"""Fewest characters around a cursor (or 16 of an id) that identify a request for every user; shorter ones count for their user
only."""
LEAST_ID = 16


class OptOuts:
    """The latest requests of users who opted out, and the events that belong to them."""

    def __init__(self, key: bytes, file: Path) -> None:
        self._key = hashlib.blake2b(key, digest_size=32).digest()
        self._file = file
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._places: dict[str, dict[int, set[str]]] = {}
        """By suffix hash: lengths of prefixes, and the hashes of their ends."""
        self._latest: OrderedDict[tuple[str, int, str], None] = OrderedDict()
        """The same positions, oldest first: one suffix, such as the empty one at the end of a file, may have any number."""
        self._written = 0
        self._load()

    def add(self, who: tuple[str, str], completion_id: str, prefix: str, suffix: str) -> None:
        """Remember a request that is opted out; `who` is its project and user."""
        self._remember(self._entry(who, (completion_id,), *normal_context(prefix, suffix), placed=True))

    def hold(self, event: Feedback, *, opted_out: bool) -> bool:
        """Return whether an event is opted out, by itself or by its request; then its ids are remembered too."""
        if not (opted_out or self._ids or self._places):
            return False
        who = (event.project, event.user)
        ids = (event.completion_id, event.client_id)
        known = any(hashed in self._ids for hashed in self._hashed_ids(who, ids))
        prefix, suffix = normal_context(event.prefix, event.suffix)  # it may have other line ends than the request
        # Without any text, an event has an id and no cursor position.
        placed = bool(event.prefix or event.suffix or event.shown)
        if not (opted_out or known or (placed and self._at_place(who, prefix, suffix))):
            return False
        # A position only near another one is not remembered: otherwise all later requests in the file would be opted out.
        self._remember(self._entry(who, ids, prefix, suffix, placed=opted_out and bool(prefix or suffix)))
        return True

    def _at_place(self, who: tuple[str, str], prefix: str, suffix: str) -> bool:
        for hashed in self._hashed_suffixes(who, suffix):
            for length, ends in self._places.get(hashed, {}).items():
                if 0 <= len(prefix) - length <= MOST_TYPED and self._end(prefix[:length]) in ends:
                    return True
        return False

    def _entry(self, who: tuple[str, str], ids: tuple[str, ...], prefix: str, suffix: str, *, placed: bool) -> dict[str, Any]:
        entry: dict[str, Any] = {"ids": self._hashed_ids(who, ids)}
        if placed:
            shared = len(prefix) + len(suffix) >= LEAST_SHARED
            entry |= {"suffix": self._hashed_suffixes(who, suffix)[shared], "length": len(prefix), "end": self._end(prefix)}
        return entry

    def _remember(self, entry: dict[str, Any]) -> None:
        known = all(hashed in self._ids for hashed in entry["ids"])
        if known and ("suffix" not in entry or entry["end"] in self._places.get(entry["suffix"], {}).get(entry["length"], ())):
            return
        try:
            self._write(entry)
        except OSError as error:
            log.error("%s: cannot be written, so opt-outs are forgotten at a restart: %s", self._file, error)
        self._take(entry)  # last, since `_write` may read the file again, whose entries are older

    def _take(self, entry: dict[str, Any]) -> None:
        for hashed in entry["ids"]:
            self._ids[hashed] = None
            self._ids.move_to_end(hashed)
        if "suffix" in entry:
            place = entry["suffix"], entry["length"], entry["end"]
            self._places.setdefault(place[0], {}).setdefault(place[1], set()).add(place[2])
            self._latest[place] = None
            self._latest.move_to_end(place)
        while len(self._ids) > MOST:
            self._ids.popitem(last=False)
        while len(self._latest) > MOST:
            self._forget(*self._latest.popitem(last=False)[0])

    def _forget(self, suffix: str, length: int, end: str) -> None:
        lengths = self._places[suffix]
        lengths[length].remove(end)
        if not lengths[length]:
            del lengths[length]
        if not lengths:
            del self._places[suffix]

    def _load(self) -> None:
        """Read the latest entries of the file, and rewrite the file with only these."""
        text = self._file.read_text(errors="replace") if self._file.exists() else ""
        lines = [line for line in text.split("\n") if line][-MOST:]
        for line in lines:
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError):
                log.warning("%s: a line is not an entry, and is left out", self._file)
        files.write(self._file, "".join(f"{line}\n" for line in lines))
        self._written = len(lines)

    def _write(self, entry: dict[str, Any]) -> None:
        if self._written >= 2 * MOST:
            self._load()
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        line = json.dumps(entry).encode() + b"\n"
        try:
            if (written := os.write(descriptor, line)) < len(line):  # the disk is full
                os.truncate(descriptor, os.fstat(descriptor).st_size - written)  # else it would spoil the next line, too
                raise OSError(f"only {written} of {len(line)} bytes were written")
        finally:
            os.close(descriptor)
        self._written += 1

    def _hashed_ids(self, who: tuple[str, str], ids: tuple[str, ...]) -> list[str]:
        """Return the ids' hashes; a short id counts for its user only."""
        return [self._hash("id", identifier, *(() if len(identifier) >= LEAST_ID else who)) for identifier in ids if identifier]

    def _hashed_suffixes(self, who: tuple[str, str], suffix: str) -> tuple[str, str]:
        """Return the hash of a suffix for its user, and for all users; Continue sends a newline in place of an empty suffix."""
        text = "" if suffix == "\n" else suffix
        return self._hash("suffix", text, *who), self._hash("suffix", text)

    def _end(self, prefix: str) -> str:
        return self._hash("end", prefix[-TAIL:])

    def _hash(self, *parts: str) -> str:
        body = b"\0".join(part.encode("utf-8", "surrogatepass") for part in parts)
        return hashlib.blake2b(body, key=self._key, digest_size=12).hexdigest()
