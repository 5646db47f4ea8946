"""The mark of the last backup in the object store, backups/last: when it began, in Unix seconds.

The commands of a backup write it once all of them have ended well (infra/docs/operate/restore.md).
"""

import re

from infra.storage.store import ObjectStore

KEY = "backups/last"
AHEAD_SECONDS = 86_400.0
"""A mark that is further in the future is no time of a backup, and would keep the alert silent."""


def last(store: ObjectStore, now: float) -> float | None:
    """Return when the last backup began; None where none was marked. Raises ValueError if the mark is no such time."""
    try:
        text = store.get(KEY).decode(errors="replace").strip()
    except KeyError:
        return None
    began = float(text) if re.fullmatch(r"\d{1,12}(\.\d+)?", text) else None
    if began is None or began > now + AHEAD_SECONDS:
        raise ValueError(
            f"{store.uri(KEY)}: {text[:40]!r}: expected the Unix time at which the last backup began, as from "
            f"`date +%s | aws s3 cp - {store.uri(KEY)}`"
        )
    return began
