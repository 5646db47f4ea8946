"""The pages of the records: what serving writes of requests and feedback, and what passes between the flows."""

from collections.abc import Iterable

from evals.docs.markdown import anchor, code, prose, table
from evals.docs.schema import Schema, resolved, words
from infra.records import Record, events

ABOUT = """Times are Unix seconds (UTC), durations milliseconds unless the name says otherwise. `policy_version` is the MLflow
version number of the weights, as text. Records refuse unknown fields; a field with a default may be missing in older objects."""
EVENTS_INTRO = f"""# Events

Records that serving writes of requests and feedback: one row per event, in the Parquet objects of
[the bucket](../operations.md#the-bucket) below `events/`. {ABOUT}

"""
OTHERS_INTRO = f"""# Other records

Records of cycles, tests and moves in [the bucket](../operations.md#the-bucket), as JSON or Parquet. {ABOUT}

"""


def events_page() -> str:
    """Return the page of the events in Markdown."""
    return EVENTS_INTRO + _sections(record for record in _records() if _is_event(record))


def others_page() -> str:
    """Return the page of all other records in Markdown."""
    return OTHERS_INTRO + _sections(record for record in _records() if not _is_event(record))


def _records() -> list[type[Record]]:
    return [record for record in Record.__subclasses__() if record.__module__.startswith("infra.records")]


def _is_event(record: type[Record]) -> bool:
    return record.__module__ == events.__name__


def _sections(records: Iterable[type[Record]]) -> str:
    pages = {each.__name__: "events.md" if _is_event(each) else "records.md" for each in _records()}
    names = {name: f"[{name}]({page}#{name.lower()})" for name, page in pages.items()}
    return "".join(_section(record, names) for record in records)


def _section(record: type[Record], names: dict[str, str]) -> str:
    document = record.model_json_schema()
    schema = resolved(document, document)
    rows = [
        (
            anchor(f"{record.__name__}.{name}") + code(name),
            words(given, document, names),
            _default(given),
            prose(given.get("description", "")),
        )
        for name, given in schema["properties"].items()
    ]
    head = f"## {record.__name__}\n\n{prose(record.__doc__ or '')}\n\n"
    return head + table(("field", "type", "default", "meaning"), rows) + "\n"


def _default(field: Schema) -> str:
    if "default" not in field:
        return ""
    value = field["default"]
    if value is None:
        return "null"
    return "empty" if value in ("", [], {}) else code(str(value).lower() if isinstance(value, bool) else str(value))
