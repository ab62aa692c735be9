"""A real HTTP server on loopback that gets webhooks and answers as it is told, in order; the last answer stays."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True)
class Got:
    """One request. Names of headers are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Receiver:
    """``answers``: statuses; 0 stands for silence, −1 for something that is no HTTP."""

    answers: list[int] = field(default_factory=lambda: [200])
    got: list[Got] = field(default_factory=list[Got])
    most_at_once: int = 0
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: answers go out at once."""
    _now: int = 0
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self.hold.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        assert self._server is not None
        self.hold.set()
        self._server.close()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/hook?a=b"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.got.append(Got(head[0].split(" ")[1], headers, body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        await self.hold.wait()
        self._now -= 1
        if answer == 0:
            await reader.read()
            return
        where = f"Location: {self.url}\r\n" if 300 <= answer < 400 else ""
        text = f"HTTP/1.1 {answer} Whatever\r\n{where}Content-Length: 0\r\n\r\n" if answer > 0 else "SSH-2.0-x\r\n"
        writer.write(text.encode())
        await writer.drain()
