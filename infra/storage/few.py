"""What the traffic is too little for, in the object store: few/2027-01-15/cycle.json and few/2027-01-15/test.json, each written
once a day while it holds."""

from datetime import UTC, datetime, timedelta

from infra.records.few import Few
from infra.storage.store import ObjectStore

PREFIX = "few/"


def write(store: ObjectStore, few: Few) -> Few:
    """Write what holds today, and return the record of today, which an earlier run may have written."""
    return store.put_once(f"{_folder(store, few.time)}{few.what}.json", few)


def newest(store: ObjectStore, now: float) -> list[Few]:
    """Return what was found today, else yesterday; empty where the traffic sufficed on both days."""
    for day in (now, now - timedelta(days=1).total_seconds()):
        if found := [Few.model_validate(store.get_json(key)) for key in store.keys(_folder(store, day))]:
            return found
    return []


def in_words(few: Few) -> str:
    """Return a finding in words, with the date (UTC) from which the traffic will suffice, and with its advice."""
    when = "never at this rate"
    if few.possible is not None:
        when = f"possible on {datetime.fromtimestamp(few.possible, UTC):%Y-%m-%d} at this rate"
    return ". ".join(filter(None, (f"{few.reason}: {when}", few.change)))


def _folder(store: ObjectStore, time: float) -> str:
    return f"{store.scope.prefix}{PREFIX}{datetime.fromtimestamp(time, UTC):%Y-%m-%d}/"
