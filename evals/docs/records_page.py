"""The pages of the records: what serving writes of requests and feedback, and what passes between the flows."""

from evals.docs.schema import INTROS, Schema, code, named, prose, resolved, table, words
from infra.records import Record, events


def pages() -> dict[str, str]:
    """Return the page of the events and the page of all other records in Markdown, by their names."""
    found = {"events.md": INTROS["events"], "records.md": INTROS["records"]}
    records = [record for record in Record.__subclasses__() if record.__module__.startswith("infra.records")]
    page_of = {each: "events.md" if each.__module__ == events.__name__ else "records.md" for each in records}
    names = {each.__name__: f"[{each.__name__}]({page}#{each.__name__.lower()})" for each, page in page_of.items()}
    for record, page in page_of.items():
        document = record.model_json_schema()
        rows = [
            (
                named(f"{record.__name__}.{name}", name),
                words(given, document, names),
                _default(given),
                prose(given.get("description", "")),
            )
            for name, given in resolved(document, document)["properties"].items()
        ]
        head = f"## {record.__name__}\n\n{prose(record.__doc__ or '')}\n\n"
        found[page] += head + table(("field", "type", "default", "meaning"), rows) + "\n"
    return found


def _default(field: Schema) -> str:
    if "default" not in field:
        return ""
    value = field["default"]
    if value is None:
        return "null"
    return "empty" if value in ("", [], {}) else code(str(value).lower() if isinstance(value, bool) else str(value))
