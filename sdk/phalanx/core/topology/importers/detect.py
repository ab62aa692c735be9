"""Finds out what a text is, and reads it: for files that people bring, whatever printed them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from phalanx.core.topology import codec, fabric_codec
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.fabric import Fabric
from phalanx.core.topology.importers.cloud import read_aws_topology, read_azure_topology, read_gcp_topology
from phalanx.core.topology.importers.ibnetdiscover import read_ibnetdiscover
from phalanx.core.topology.importers.ibstat import read_ibstat
from phalanx.core.topology.importers.lspci import PciDevice, read_lspci
from phalanx.core.topology.importers.mig_list import MigFacts, read_mig_list
from phalanx.core.topology.importers.nccl_xml import read_nccl_xml
from phalanx.core.topology.importers.nvlink_status import NvlinkFacts, read_nvlink_status
from phalanx.core.topology.importers.ports import Ports
from phalanx.core.topology.importers.slurm import read_slurm_topology
from phalanx.core.topology.importers.sysfs_infiniband import read_sysfs_infiniband
from phalanx.core.topology.importers.topo_text import read_topo_text
from phalanx.core.topology.node import NodeTopology

Facts = NodeTopology | Fabric | NvlinkFacts | MigFacts | Ports | tuple[PciDevice, ...]
_MAX_CHARS = 64 << 20


class Format(StrEnum):
    """The value is what people call it. The order is that in which a text that holds several is looked through."""

    NODE_JSON = "node JSON of Phalanx"
    FABRIC_JSON = "fabric JSON of Phalanx"
    AWS = "aws ec2 describe-instance-topology"
    GCP = "gcloud compute instances list --format=json"
    AZURE = "Azure instance metadata"
    NCCL_XML = "NCCL topology XML"
    TOPO_TEXT = "nvidia-smi topo -m"
    NVLINK_STATUS = "nvidia-smi nvlink -s"
    MIG_LIST = "nvidia-smi -L"
    IBNETDISCOVER = "ibnetdiscover"
    IBSTAT = "ibstat"
    SYSFS_INFINIBAND = "/sys/class/infiniband"
    LSPCI = "lspci -nn"
    SLURM = "Slurm topology.conf"


@dataclass(frozen=True, slots=True)
class Imported:
    """``facts``: a node, a fabric, or what the format says of parts of a node, which `merge.py` adds to one."""

    format: Format
    facts: Facts


def read(text: str, written_as: Format | None = None) -> Imported:
    """Raises UnreadableTopologyError, naming the formats where it is none of them."""
    text = text.removeprefix("\ufeff")
    found = written_as or detect(text)
    return Imported(found, _READERS[found](text))


def read_node(text: str) -> NodeTopology:
    """Returns the node that the text describes. Raises as `read`, and where it describes something else."""
    imported = read(text)
    if not isinstance(imported.facts, NodeTopology):
        raise UnreadableTopologyError(
            f"this is {imported.format}, which does not describe a node's GPUs and their links",
            hint="bring `nvidia-smi topo -m`, an NCCL topology XML, or what `gpuctl topo NODE --json` printed",
        )
    return imported.facts


def read_fabric(text: str, written_as: Format | None = None) -> Fabric:
    """Returns the fabric that the text describes. Raises as `read`, and where it describes something else."""
    imported = read(text, written_as)
    if not isinstance(imported.facts, Fabric):
        raise UnreadableTopologyError(
            f"this is {imported.format}, which does not describe the network between nodes",
            hint="bring Slurm's topology.conf, the output of `ibnetdiscover`, or a cloud's instance topology as JSON",
        )
    return imported.facts


def detect(text: str) -> Format:
    """Returns what the text looks like; whether all of it is right is for the reader to say. Raises as `read`."""
    if len(text) > _MAX_CHARS:
        raise UnreadableTopologyError(f"{len(text)} characters: at most {_MAX_CHARS} are read")
    start = text.lstrip("\ufeff \t\r\n")[:1]
    signs = _JSON_SIGNS if start in ("{", "[") else _SIGNS
    for kind, sign in signs.items():
        if sign.search(text):
            return kind
    raise UnreadableTopologyError(f"this is none of the formats that are read: {', '.join(Format)}")


def _sign(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE | re.IGNORECASE)


_JSON_SIGNS: Mapping[Format, re.Pattern[str]] = {
    Format.NODE_JSON: _sign(rf'"format": {{0,9}}"{codec.FORMAT}"'),
    Format.FABRIC_JSON: _sign(rf'"format": {{0,9}}"{fabric_codec.FORMAT}"'),
    Format.AWS: _sign(r'"(?:NetworkNodes|networkNodeSet|CapacityBlockId)"'),
    Format.GCP: _sign(r'"(?:resourceStatus|physicalHostTopology|physicalHost|machineType)"'),
    Format.AZURE: _sign(r'"(?:platformFaultDomain|placementGroupId|vmId)"'),
}
_SIGNS: Mapping[Format, re.Pattern[str]] = {
    Format.NCCL_XML: _sign(r"<system[\s>]"),
    Format.TOPO_TEXT: _sign(r"^[ \t]{0,40}GPU[0-9]{1,4}[ \t]{1,40}(?:X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|N/A)\s"),
    Format.NVLINK_STATUS: _sign(r"^[ \t]{0,40}Link [0-9]{1,3}:|Unable to retrieve NVLink information"),
    Format.MIG_LIST: _sign(r"^[ \t]{0,40}GPU [0-9]{1,4}: "),
    Format.IBNETDISCOVER: _sign(r'^(?:Switch|Ca|Rt)[ \t]{1,9}[0-9]{1,9} "'),
    Format.IBSTAT: _sign(r"^[ \t]{0,40}CA '[^']{1,64}'"),
    Format.SYSFS_INFINIBAND: _sign(r"/infiniband/[^/\s]{1,64}/"),
    Format.LSPCI: _sign(r"^[ \t]{0,40}[0-9a-f:.]{7,16} .{0,200}\[[0-9a-f]{4}\]:"),
    Format.SLURM: _sign(r"^[ \t]{0,40}(?:SwitchName|BlockName|BlockSizes)="),
}
_READERS: Mapping[Format, Callable[[str], Facts]] = {
    Format.NODE_JSON: codec.from_answer,
    Format.FABRIC_JSON: fabric_codec.fabric_from_json,
    Format.AWS: read_aws_topology,
    Format.GCP: read_gcp_topology,
    Format.AZURE: read_azure_topology,
    Format.NCCL_XML: read_nccl_xml,
    Format.TOPO_TEXT: read_topo_text,
    Format.NVLINK_STATUS: read_nvlink_status,
    Format.MIG_LIST: read_mig_list,
    Format.IBNETDISCOVER: read_ibnetdiscover,
    Format.IBSTAT: read_ibstat,
    Format.SYSFS_INFINIBAND: read_sysfs_infiniband,
    Format.LSPCI: read_lspci,
    Format.SLURM: read_slurm_topology,
}
