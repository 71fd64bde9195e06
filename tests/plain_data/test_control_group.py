"""Limits of control groups, of both versions, as a container's, a unit's and a bare machine's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from milepost import control_group, machine
from milepost.control_group import group_memory, group_processors

Tree = Callable[[str, dict[str, str]], None]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Make this process a member of groups, and the groups."""

    def make(membership: str, files: dict[str, str]) -> None:
        (tmp_path / "membership").write_text(membership)
        for name, text in files.items():
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(control_group, "_MEMBERSHIP", tmp_path / "membership")
        monkeypatch.setattr(control_group, "_ROOT", tmp_path / "root")

    return make


def test_a_container_of_version_2(tree: Tree) -> None:
    files = {"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": "anon 1\ninactive_file 300\n"}
    tree("0::/\n", files | {"cpu.max": "150000 100000\n"})
    assert group_memory() == 600
    assert group_processors() == 1.5


def test_of_a_unit_and_the_slices_around_it_the_least_counts(tree: Tree) -> None:
    tree(
        "0::/system.slice/milepost.service\n",
        {
            "system.slice/memory.max": "500\n",
            "system.slice/memory.current": "450\n",
            "system.slice/cpu.max": "max 100000\n",
            "system.slice/milepost.service/memory.max": "300\n",
            "system.slice/milepost.service/memory.current": "100\n",
            "system.slice/milepost.service/cpu.max": "400000 100000\n",
        },
    )
    assert group_memory() == 50
    assert group_processors() == 4.0


def test_version_1_has_a_tree_for_each_kind(tree: Tree) -> None:
    tree(
        "4:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n0::/\n",
        {
            "memory/memory.limit_in_bytes": "1000\n",  # the container sees its own group as the root
            "memory/memory.usage_in_bytes": "900\n",
            "memory/memory.stat": "inactive_file 7\ntotal_inactive_file 200\n",
            "cpu/cpu.cfs_quota_us": "50000\n",
            "cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert group_memory() == 300
    assert group_processors() == 0.5


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"memory.max": "max\n", "memory.current": "5\n", "cpu.max": "max 100000\n"},
        {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
        {"cpu.max": "100000 0\n", "memory.max": "\n"},
    ],
)
def test_no_limit(tree: Tree, files: dict[str, str]) -> None:
    tree("1:cpu:/\n0::/\n", files)
    assert group_memory() is None
    assert group_processors() is None


def test_more_taken_than_allowed_leaves_nothing(tree: Tree) -> None:
    tree("0::/\n", {"memory.max": "10\n", "memory.current": "30\n"})
    assert group_memory() == 0


@pytest.mark.parametrize(("share", "cores"), [(None, 8), (2.5, 2), (0.2, 1), (64.0, 8)])
def test_threads_are_as_many_as_the_group_lets_run(
    monkeypatch: pytest.MonkeyPatch, share: float | None, cores: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(machine, "group_processors", lambda: share)
    assert machine.usable_cores() == cores


@pytest.mark.parametrize(("group", "left"), [(5, 5), (1 << 60, None), (None, None)])
def test_the_lesser_of_system_and_group(
    monkeypatch: pytest.MonkeyPatch, group: int | None, left: int | None
) -> None:
    monkeypatch.setattr(machine, "_system_available", lambda: 1 << 40)
    monkeypatch.setattr(machine, "group_memory", lambda: group)
    assert machine.available_memory() == (1 << 40 if left is None else left)
