"""Reads what `nvidia-smi topo -m` and `topo -mp` print: link classes, NVLink counts, affinity, network cards.

The text names GPUs by index only, so they get ``uuid="index-0"`` and so on until `merge.py` adds the real ones. Where a
pair shows NVLinks it does not show its PCIe path, which stays None. ``-mp`` hides NVLinks: there `nvlinks` is None.
"""

from __future__ import annotations

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.text import labels_of, shortened
from phalanx.core.topology.importers.topo_rows import CPU, MEMORY_NUMA, NUMA
from phalanx.core.topology.importers.topo_table import GPU, MIG, Table, read_table
from phalanx.core.topology.node import Gpu, Link, Nic, NicLink, NodeTopology, Path

SOURCE = "topo_text"
_MAX_GPUS = 128
_MAX_NICS = 512
_MOST_NVLINKS = 18
"""Of any GPU that has been sold (Hopper, Blackwell): a GPU that shows more in sum has them through a switch."""


def read_topo_text(text: str) -> NodeTopology:
    """Returns one node. Raises UnreadableTopologyError, with the line; what is missing is None, with a note."""
    table = read_table(text)
    labels = _labels(table, gpus=True)
    nics = _labels(table, gpus=False)
    if not 0 < len(labels) <= _MAX_GPUS or len(nics) > _MAX_NICS:
        raise UnreadableTopologyError(
            f"{len(labels)} GPUs and {len(nics)} network cards: expected 1 to {_MAX_GPUS} and {_MAX_NICS} at most"
        )
    notes = [*table.notes, *_missing_rows(table, labels, nics)]
    links = _links(table, labels, notes)
    return NodeTopology(
        gpus=tuple(_gpu(table, label, notes) for label in labels),
        links=links,
        nics=tuple(Nic(name=table.nic_names.get(label, label)) for label in nics),
        nic_links=tuple(tuple(NicLink(path=_path(_cell(table, gpu, nic, notes))) for nic in nics) for gpu in labels),
        sources=tuple((fact, SOURCE) for fact in _facts(table, nics)),
        notes=shortened(notes),
    )


def _labels(table: Table, *, gpus: bool) -> list[str]:
    """Columns first, then rows whose column was cut off."""
    every = dict.fromkeys((*table.columns, *table.rows))
    named = [label for label in every if not MIG.fullmatch(label) and not label.startswith("column ")]
    return [label for label in named if (GPU.fullmatch(label) is not None) is gpus]


def _missing_rows(table: Table, labels: list[str], nics: list[str]) -> list[str]:
    notes = [f"{label} has a column and no row: its affinity is unknown" for label in labels if label not in table.rows]
    cut = [label for label in nics if label not in table.rows]
    if cut and len(cut) < len(nics):
        notes.append(f"the table is cut off: no row for {', '.join(cut)}")
    indices = [int(label[3:]) for label in labels]
    gaps = sorted(set(range(max(indices, default=0))) - set(indices))
    if gaps and len(gaps) <= _MAX_GPUS:
        notes.append(f"missing from the matrix: {', '.join(f'GPU{index}' for index in gaps)}")
    if table.mig_rows:
        notes.append(f"{len(table.mig_rows)} rows of MIG devices are left out")
    return notes


def _facts(table: Table, nics: list[str]) -> list[str]:
    affinity = {"cpus": CPU, "numa": NUMA, "memory_numa": MEMORY_NUMA}
    shown = [fact for fact, heading in affinity.items() if heading in table.headings]
    return ["links", *(["nics"] if nics else []), *shown]


def _gpu(table: Table, label: str, notes: list[str]) -> Gpu:
    words = table.affinity.get(label, {})
    memory_numa = labels_of(words.get(MEMORY_NUMA, ""))
    for heading, word in words.items():
        if labels_of(word) is None and word != "N/A":
            notes.append(f"line {table.rows[label]}: {label}: {heading} {word!r}: expected a list such as 0-1 or N/A")
    return Gpu(
        uuid=f"index-{int(label[3:])}",
        index=int(label[3:]),
        numa=labels_of(words.get(NUMA, "")),
        cpus=words[CPU] if labels_of(words.get(CPU, "")) else None,
        memory_numa=memory_numa[0] if memory_numa and len(memory_numa) == 1 else None,
        mig_enabled=True if label in table.mig_rows else None,
    )


def _links(table: Table, labels: list[str], notes: list[str]) -> tuple[tuple[Link, ...], ...]:
    pairs = [(one, other) for at, one in enumerate(labels) for other in labels[at + 1 :]]
    cells = {pair: _cell(table, *pair, notes) for pair in pairs}
    counts = {pair: _nvlinks(cell) for pair, cell in cells.items()}
    shown = _shows_nvlinks(table, counts)
    if pairs and not shown:
        notes.append("this table does not show NVLinks, so whether there are any is unknown: use `nvidia-smi topo -m`")
    switched = _switched(labels, counts)
    made = {pair: _link(cells[pair], counts[pair], shown=shown, switched=switched) for pair in pairs}
    made.update({(other, one): link for (one, other), link in made.items()})
    return tuple(tuple(made.get((one, other), Link()) for other in labels) for one in labels)


def _shows_nvlinks(table: Table, counts: dict[tuple[str, str], int | None]) -> bool:
    return any(counts.values()) or (table.nvlink_in_legend is True and not table.pcie_only)


def _link(cell: str, count: int | None, *, shown: bool, switched: bool | None) -> Link:
    path = _path(cell)
    if count is None:
        return Link(nvlinks=0 if path and shown else None, path=path)
    return Link(nvlinks=count, switched=switched)


def _switched(labels: list[str], counts: dict[tuple[str, str], int | None]) -> bool | None:
    """True where a GPU shows more NVLinks than any has; a mesh and a small switched set look the same: None."""
    sums = dict.fromkeys(labels, 0)
    for (one, other), count in counts.items():
        sums[one] += count or 0
        sums[other] += count or 0
    return True if max(sums.values(), default=0) > _MOST_NVLINKS else None


def _cell(table: Table, row: str, column: str, notes: list[str]) -> str:
    """From the row, or from the other's where that is missing. Where the two differ, the farther one."""
    here, there = table.cells.get((row, column), ""), table.cells.get((column, row), "")
    if here and there and here != there:
        notes.append(f"{row} to {column} is {here}, and back {there}: taken for the farther")
        return max(here, there, key=_farness)
    cell = here or there
    if cell not in ("", "N/A") and _path(cell) is None and _nvlinks(cell) is None:
        notes.append(f"{row} to {column} is {cell!r}: expected NV# or one of {', '.join(Path)}")
    return cell


def _farness(cell: str) -> tuple[int, int]:
    path, count = _path(cell), _nvlinks(cell)
    if count is not None:
        return (0, -count)
    return (1, path.distance) if path else (-1, 0)


def _path(cell: str) -> Path | None:
    word = "SYS" if cell == "SOC" else cell
    return Path(word) if word in Path.__members__ else None


def _nvlinks(cell: str) -> int | None:
    return int(cell[2:]) if cell.startswith("NV") and cell[2:].isdecimal() else None
