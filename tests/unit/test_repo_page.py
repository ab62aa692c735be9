"""The live page: its types are the server's, its colours can be read, its bundle is small and needs no inline code."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
from pathlib import Path

import pytest

WEB = Path(__file__).parents[2] / "control_plane/phalanx_control/web"
UI, STATIC = WEB / "ui", WEB / "static"
STYLE = (UI / "src/style.css").read_text()
STATES = ("running", "queued", "starting", "succeeded", "failed", "cancelled")


def test_the_pages_types_are_those_of_the_views() -> None:
    spec = importlib.util.spec_from_file_location("make_types", UI / "make_types.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (UI / "src/types.ts").read_text() == module.render(), "run make ui-types"


def test_dependencies_are_pinned_and_the_lock_names_no_registry() -> None:
    package = json.loads((UI / "package.json").read_text())
    wanted = {**package["dependencies"], **package["devDependencies"]}
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values())
    lock = json.loads((UI / "package-lock.json").read_text())
    for name, entry in lock["packages"].items():
        assert "resolved" not in entry, name
        assert not name or "integrity" in entry, name


def theme(name: str) -> dict[str, str]:
    pattern = r":root \{(.*?)\}" if name == "light" else r':root\[data-theme="dark"\] \{(.*?)\}'
    found = re.search(pattern, STYLE, re.DOTALL)
    assert found
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", found.group(1)))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_every_text_colour_has_a_contrast_of_4_5_on_what_it_stands_on(name: str) -> None:
    colours = theme(name)
    for text in ("text", "muted", *STATES):
        for ground in ("card", "hover", "ground"):
            assert contrast(colours[text], colours[ground]) >= 4.5, f"{text} on {ground}"
    for text, ground in (("warn-text", "warn-ground"), ("bad-text", "bad-ground"), ("on-gang-7", "gang-7")):
        assert contrast(colours[text], colours[ground]) >= 4.5, f"{text} on {ground}"


def test_numbers_on_gang_colours_can_be_read() -> None:
    inks = re.findall(r"--ink: (#[0-9a-f]{6}); --on-ink: (#[0-9a-f]{6})", STYLE)
    assert len(inks) == 7
    assert all(contrast(ink, on) >= 4.5 for ink, on in inks)


def test_both_ways_to_dark_have_the_same_colours() -> None:
    by_system = re.search(r':root:not\(\[data-theme="light"\]\) \{(.*?)\}', STYLE, re.DOTALL)
    assert by_system
    assert dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", by_system.group(1))) == theme("dark")


built = pytest.mark.skipif(not (STATIC / "index.html").exists(), reason="the page is not built: run make ui")


@built
def test_the_bundle_keeps_its_budget() -> None:
    for ending, limit in ((".js", 90 * 1024), (".css", 12 * 1024)):
        files = list(STATIC.glob(f"*{ending}"))
        assert files
        assert sum(len(gzip.compress(f.read_bytes())) for f in files) <= limit


@built
def test_the_built_page_has_hashed_names_and_nothing_inline() -> None:
    page = (STATIC / "index.html").read_text()
    for name in re.findall(r'(?:src|href|data-worker)="static/([^"]+)"', page):
        assert re.fullmatch(r"(main|style|worker)-[A-Z0-9]{8}\.(js|css)", name)
        assert (STATIC / name).is_file()
    assert len(re.findall(r'="static/', page)) == 3
    assert "<style" not in page
    assert " style=" not in page
    assert not re.search(r"<script(?![^>]*src=)", page)
    assert not re.search(r"\son[a-z]+=", page)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
