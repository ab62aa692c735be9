"""The program's own log: one JSON object a line on standard error, event first, ids as fields."""

from __future__ import annotations

import json
import logging
import sys

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {"event": record.getMessage(), "level": record.levelname.lower()}
        line["at_ms"] = round(record.created * 1000)
        line["from"] = record.name
        line.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def start_logging(level: int = logging.INFO) -> None:
    """Sends every logger's records to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in ("grpc", "uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
