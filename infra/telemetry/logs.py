"""The log of a process: lines for people, or a JSON object a line with the ids of the request and of its trace."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from infra.telemetry.spans import REQUEST, trace_id

Format = Literal["text", "json"]
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON; `request` and `trace` only of a completion's."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request := REQUEST.get():
            line |= {"request": request, "trace": trace_id(request)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(form: Format) -> None:
    """Log to the standard error in a form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
