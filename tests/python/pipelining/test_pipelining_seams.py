"""What dualpipe.pipelining uses of torch: an unknown version warns, a seam that is gone stops with its name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dualpipe.pipelining import seams


def test_unknown_version_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams, "installed_version", lambda: "9.9.0")
    with pytest.warns(UserWarning) as caught:
        seams.check_torch()
    assert [str(warning.message) for warning in caught] == [
        "dualpipe.pipelining was tested with torch 2.15, got 9.9.0; its tests (tests/python/pipelining) tell whether "
        "it holds"
    ]


@pytest.mark.parametrize("path, missing", [
    ("schedules.get_schedule_class", "schedules.get_schedule_class"),
    ("schedules._Action", "schedules._Action.from_str"),
    ("stage._PipelineStageBase._parent_group", "stage._PipelineStageBase._parent_group"),
])
def test_missing_seam_stops(monkeypatch: pytest.MonkeyPatch, path: str, missing: str) -> None:
    seams.check_torch()
    monkeypatch.setattr(seams, "installed_version", lambda: "9.9.0")
    monkeypatch.delattr(f"torch.distributed.pipelining.{path}")
    with pytest.raises(ImportError) as caught:
        seams.check_torch()
    assert str(caught.value) == (f"dualpipe.pipelining needs torch.distributed.pipelining.{missing}, which torch 9.9.0 "
                                 "does not have; torch 2.15 does")


def test_what_torch_sets_on_an_object_is_looked_for_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams, "installed_version", lambda: "9.9.0")
    _, names = seams.DDP
    seams.check_object(SimpleNamespace(**dict.fromkeys(names)), seams.DDP)
    with pytest.raises(AttributeError) as caught:
        seams.check_object(SimpleNamespace(**dict.fromkeys(names[2:])), seams.DDP)
    assert str(caught.value) == ("dualpipe.pipelining needs DistributedDataParallel.module, "
                                 "DistributedDataParallel.process_group, which torch 9.9.0 does not have; torch 2.15 "
                                 "does")
