"""The pages of the records: what serving writes of requests and feedback, and what passes between the flows."""

import inspect
import types
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from infra.docs_build.markdown import anchor, code, prose, table
from infra.records import Record, base, cycles, erasure, events, experiments, heldout, looks, measures, moves, requests, versions

EVENTS = (events,)
"""Modules of the events page."""
OTHERS = (base, cycles, experiments, looks, moves, requests, erasure, measures, heldout, versions)
"""Modules of the page of the other records; no record is in neither."""
ABOUT = """Times are Unix seconds (UTC), durations milliseconds unless the name says otherwise. `policy_version` is the MLflow
version number of the weights, as text. Records refuse unknown fields; a field with a default may be missing in objects of an
earlier release."""
EVENTS_INTRO = f"""# Events

What serving writes of requests and feedback: one row per event, in the Parquet objects of
[the bucket](../operations.md#the-bucket) below `events/`, and what `python -m tasks.offline` imports. {ABOUT}

"""
OTHERS_INTRO = f"""# Other records

What cycles, tests and moves leave in [the bucket](../operations.md#the-bucket), as JSON or Parquet. {ABOUT}

"""


def events_page() -> str:
    """Return the page of the events in Markdown."""
    return EVENTS_INTRO + "".join(_sections(EVENTS))


def others_page() -> str:
    """Return the page of all other records in Markdown."""
    return OTHERS_INTRO + "".join(_sections(OTHERS))


def records(modules: tuple[ModuleType, ...]) -> Iterator[type[Record]]:
    """Yield the records of modules in the order of the source."""
    for module in modules:
        declared = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__]
        yield from (each for each in declared if issubclass(each, Record) and each is not Record)


def _sections(modules: tuple[ModuleType, ...]) -> Iterator[str]:
    for record in records(modules):
        rows = [
            (
                anchor(f"{record.__name__}.{name}") + code(name),
                _type(field.annotation),
                _default(field),
                prose(field.description or ""),
            )
            for name, field in record.model_fields.items()
        ]
        yield f"## {record.__name__}\n\n{prose(record.__doc__ or '')}\n\n"
        yield table(("field", "type", "default", "meaning"), rows) + "\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "null"
    return code(str(value).lower() if isinstance(value, bool) else str(value)) if value not in ("", (), {}) else "empty"


def _type(annotation: Any) -> str:
    """Return a type in words of JSON; another record is a link to its section."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (types.UnionType, Union):
        return " or ".join(dict.fromkeys(map(_type, arguments)))
    if origin is Literal:
        return " or ".join(code(str(each) or '""') for each in arguments)
    if hasattr(annotation, "__metadata__"):
        return _type(arguments[0])
    if isinstance(origin, type) and issubclass(origin, tuple | list):
        return "list of " + " and ".join(dict.fromkeys(_type(each) for each in arguments if each is not Ellipsis))
    if origin is not None and len(arguments) == 2:
        return f"object of {_type(arguments[1])} by {_type(arguments[0])}"
    if inspect.isclass(annotation) and issubclass(annotation, Record):
        page = "events.md" if annotation.__module__ == events.__name__ else "records.md"
        return f"[{annotation.__name__}]({page}#{annotation.__name__.lower()})"
    named = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
    return named.get(annotation, getattr(annotation, "__name__", str(annotation)))
