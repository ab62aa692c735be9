"""Fixtures of the fault tests: both shapes of a gang of four, and a cluster that is judged when a file is done."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.aftermath import judged_cluster
from tests.support.cluster import Cluster


@pytest.fixture(params=[1, 2], ids=["1x4", "2x2"])
def nodes(request: pytest.FixtureRequest) -> int:
    """How many nodes a gang of four ranks is spread over."""
    return request.param


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two agents with four GPUs each, shared by a file's tests."""
    with judged_cluster(tmp_path_factory.mktemp("cluster"), agents=2) as running:
        yield running
