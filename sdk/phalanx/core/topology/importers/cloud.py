"""Reads what clouds say of where instances are: AWS, GCP and Azure, each in the JSON of its own command. Pure.

Just after a start, facts may be missing or null: such an instance is put where it is known to be, and no nearer.

AWS: ``aws ec2 describe-instance-topology``. GCP: ``gcloud compute instances list --format=json``, or the answer of the
API. Azure: one document of the instance metadata service, or a list of those of several machines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.fabric import Fabric, FabricNode
from phalanx.core.topology.importers.reading import MAX_FABRIC_CHARS
from phalanx.core.topology.importers.tree_draft import TreeDraft
from phalanx.core.topology.json_text import Object, list_in, object_in, read_json, text_in

_AWS_LAYERS = ("leaf", "spine", "core", "core-2", "core-3", "core-4")
_GCP_LEVELS = ("host", "subblock", "block", "cluster")


def read_aws_topology(text: str) -> Fabric:
    """Returns the network nodes of DescribeInstanceTopology, the closest as leaf, and the zone above them.

    A Capacity Block is an NVLink domain: AWS names it for UltraServers only. Raises UnreadableTopologyError.
    """
    answer = read_json(text, "AWS topology", max_chars=MAX_FABRIC_CHARS)
    instances = _items(answer, "Instances", "instanceSet")
    draft = TreeDraft((*_AWS_LAYERS, "zone"))
    for instance in instances:
        layers = [layer for layer in _network_nodes(instance) if isinstance(layer, str) and layer][: len(_AWS_LAYERS)]
        named = list(zip(reversed(_AWS_LAYERS[: len(layers)]), layers, strict=True))
        zone = text_in(instance, "ZoneId", "AvailabilityZone")
        path = [*([("zone", f"zone:{zone}")] if zone else []), *named]
        name = text_in(instance, "InstanceId")
        _add(draft, name, path, nvl_domain=text_in(instance, "CapacityBlockId"))
        if name and not layers:
            draft.notes.append(f"{name}: no network nodes: expected once it runs for a while")
    if text_in(object_in(answer), "NextToken"):
        draft.notes.append("the answer goes on (NextToken): the instances of its other pages are missing")
    return _finished(draft, "Instances with InstanceId and NetworkNodes")


def read_gcp_topology(text: str) -> Fabric:
    """Returns hosts, subblocks, blocks, clusters and zones of Compute Engine instances.

    On A4X machines a subblock is one NVLink domain. Raises UnreadableTopologyError.
    """
    draft = TreeDraft((*_GCP_LEVELS, "zone"))
    for instance in _gcp_instances(read_json(text, "GCP topology", max_chars=MAX_FABRIC_CHARS)):
        name, zone = text_in(instance, "name"), text_in(instance, "zone").rpartition("/")[2]
        places = _gcp_places(object_in(instance.get("resourceStatus")))
        path = [(level, f"{level}:{places[level]}") for level in reversed(_GCP_LEVELS) if places.get(level)]
        if zone:
            path.insert(0, ("zone", f"zone:{zone}"))
        machine = text_in(instance, "machineType").rpartition("/")[2]
        _add(draft, name, path, nvl_domain=places.get("subblock", "") if machine.startswith("a4x") else "")
        if name and not any(places.get(level) for level in ("cluster", "block", "subblock")):
            draft.notes.append(
                f"{name}: no cluster, block or subblock: expected in resourceStatus.physicalHostTopology"
            )
    return _finished(draft, "instances with name and resourceStatus.physicalHostTopology")


def read_azure_topology(text: str) -> Fabric:
    """Returns fault domains (one switch), placement groups (one InfiniBand), zones and regions of virtual machines.

    Azure shows fault domain 0 for every machine of a group that it spreads as it likes, so a number counts only where
    the machines of a group have several. Raises UnreadableTopologyError.
    """
    answer = read_json(text, "Azure metadata", max_chars=MAX_FABRIC_CHARS)
    documents = _items(answer, "value") if not object_in(answer).get("compute") else [object_in(answer)]
    machines = [object_in(document.get("compute", document)) for document in documents]
    numbers: dict[str, set[str]] = defaultdict(set)
    for machine in machines:
        numbers[text_in(machine, "placementGroupId")].add(text_in(machine, "platformFaultDomain"))
    draft = TreeDraft(("fault-domain", "placement-group", "zone", "region"))
    for machine in machines:
        told_apart = len(numbers[text_in(machine, "placementGroupId")] - {""}) > 1
        name = text_in(machine, "name", "vmId")
        _add(draft, name, _azure_path(machine, fault_domains=told_apart))
        if name and not text_in(machine, "placementGroupId"):
            draft.notes.append(f"{name}: no placementGroupId: its InfiniBand network is unknown")
    return _finished(draft, "compute with name, placementGroupId and platformFaultDomain")


def _azure_path(machine: Object, *, fault_domains: bool) -> list[tuple[str, str]]:
    region = text_in(machine, "location")
    zone = text_in(machine, "physicalZone") or (f"{region}-{zone}" if (zone := text_in(machine, "zone")) else "")
    group = text_in(machine, "placementGroupId")
    number = text_in(machine, "platformFaultDomain") if fault_domains else ""
    path = [("region", region), ("zone", zone), ("placement-group", group)]
    if group and number:
        path.append(("fault-domain", f"{group}/{number}"))
    return [(level, f"{level}:{name}") for level, name in path if name]


def _network_nodes(instance: Object) -> list[object]:
    return list_in(instance.get("NetworkNodes")) or list_in(instance.get("networkNodeSet"))


def _gcp_instances(answer: object) -> Iterator[Object]:
    """Yields the instances of a list, of an answer, of an answer over all zones, or the one that it is."""
    items = object_in(answer).get("items", answer)
    if isinstance(items, dict) and "resourceStatus" not in items:
        for zone in object_in(items).values():
            yield from (object_in(item) for item in list_in(object_in(zone).get("instances")))
    else:
        yield from (object_in(item) for item in list_in(items) or [items])


def _gcp_places(status: Object) -> dict[str, str]:
    """Returns the names of an instance's host and so on; the older ``physicalHost`` is "/cluster/block/host"."""
    topology = object_in(status.get("physicalHostTopology"))
    places = {level: text_in(topology, level) for level in _GCP_LEVELS}
    older = text_in(status, "physicalHost").strip("/").split("/")
    if not any(places.values()) and len(older) == 3:
        places.update(zip(("cluster", "block", "host"), older, strict=True))
    return places


def _items(answer: object, *names: str) -> list[Object]:
    items = list_in(answer)
    for name in names:
        items = items or list_in(object_in(answer).get(name))
    return [object_in(item) for item in items]


def _add(draft: TreeDraft, name: str, path: list[tuple[str, str]], *, nvl_domain: str = "") -> None:
    if name:
        draft.add_node(FabricNode(id=name, domain=draft.add_path(path), nvl_domain=nvl_domain or None))
    else:
        draft.notes.append("an instance has no name: left out")


def _finished(draft: TreeDraft, expected: str) -> Fabric:
    if not draft.nodes:
        raise UnreadableTopologyError(f"no instance: expected {expected}", line=1)
    return draft.fabric()
