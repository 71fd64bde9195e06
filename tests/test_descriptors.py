"""Connections and the limit of open files."""

from __future__ import annotations

import resource

import pytest

from milepost.descriptors import OTHER_FILES, files_allowed, room_for_connections

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "fits", "asked"),
    [
        ((1024, 1 << 20), 4096, 4096 + OTHER_FILES),
        ((1024, UNLIMITED), 4096, 4096 + OTHER_FILES),
        ((1024, 1024), 1024 - OTHER_FILES, 1024),
        ((64, 64), 32, 64),
        ((1 << 16, 1 << 16), 4096, None),
        ((UNLIMITED, UNLIMITED), 4096, None),
    ],
)
def test_as_many_connections_as_the_limit_can_be_raised_for(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], fits: int, asked: int | None
) -> None:
    said: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda _: limits)
    monkeypatch.setattr("resource.setrlimit", lambda _, given: said.append(given))
    assert room_for_connections(4096) == fits
    assert said == ([] if asked is None else [(asked, limits[1])])
    assert files_allowed() == (None if limits[1] == UNLIMITED else limits[1])
