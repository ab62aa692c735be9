"""Reads the elements of an NCCL topology file. No document types, no entities, bounded size and depth. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.reading import bounded

MAX_ELEMENTS = 50_000
MAX_DEPTH = 64


@dataclass(slots=True, eq=False)
class Element:
    """One element, its place in the tree, and the line it starts on."""

    tag: str
    attributes: dict[str, str]
    line: int
    parent: Element | None
    children: list[Element] = field(default_factory=list["Element"])

    def get(self, name: str) -> str | None:
        return self.attributes.get(name)

    def named(self, *tags: str) -> list[Element]:
        """Returns the children with one of these tags."""
        return [child for child in self.children if child.tag in tags]

    def below(self) -> Iterator[Element]:
        """Yields every element below this one, in the order of the file."""
        waiting = list(reversed(self.children))
        while waiting:
            element = waiting.pop()
            yield element
            waiting.extend(reversed(element.children))

    def above(self) -> Iterator[Element]:
        """Yields this element and those that it lies in, nearest first."""
        element: Element | None = self
        while element is not None:
            yield element
            element = element.parent


def read_tree(text: str) -> Element:
    """Returns the ``<system>`` element. Raises UnreadableTopologyError with the line."""
    reader = _Reader()
    reader.read(bounded(text, "NCCL topology"))
    assert reader.root is not None
    if reader.root.tag != "system":
        line = reader.root.line
        raise UnreadableTopologyError(f"the file holds <{reader.root.tag[:40]}>: expected <system>", line=line)
    return reader.root


class _Reader:
    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: Element | None = None
        self._depth = 0
        self._count = 0
        # The text is Unicode already: what its declaration says of an encoding is no longer true.
        self._parser = expat.ParserCreate("utf-8")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype

    def read(self, text: str) -> None:
        try:
            self._parser.Parse(text.encode(), True)
        except UnicodeEncodeError as error:
            raise UnreadableTopologyError("the file is not Unicode text") from error
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise UnreadableTopologyError(f"not well-formed XML ({reason})", line=error.lineno) from error

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._count += 1
        self._depth += 1
        line = self._parser.CurrentLineNumber
        if self._count > MAX_ELEMENTS:
            raise UnreadableTopologyError(f"more than {MAX_ELEMENTS} elements: no node has so many", line=line)
        if self._depth > MAX_DEPTH:
            raise UnreadableTopologyError(f"elements lie more than {MAX_DEPTH} deep: no PCI tree does", line=line)
        element = Element(tag, attributes, line, self._open)
        if self._open is not None:
            self._open.children.append(element)
        else:
            self.root = element
        self._open = element

    def _end(self, _tag: str) -> None:
        self._depth -= 1
        self._open = self._open.parent if self._open is not None else None

    def _refuse_doctype(self, name: str, *_declared: object) -> NoReturn:
        line = self._parser.CurrentLineNumber
        raise UnreadableTopologyError(f"a document type ({name[:40]}) is declared: expected none", line=line)
