"""A tenant that does as much at once as it may."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from ramet.models.snapshots import Snapshot
from ramet.server.faults import Refused, response_of
from ramet.server.settings import Settings
from ramet.server.tenants import Tenant
from ramet.server.tokens import NOBODY, Quota


@pytest.fixture
def tenant(tmp_path: Path) -> Tenant:
    """One whose daemon nobody asks."""
    return Tenant("default", Settings(str(tmp_path)), None, lambda: False)


def test_one_snapshot_too_many_at_once_is_told_to_come_again(tenant: Tenant) -> None:
    with tenant.branch_of(1):
        with pytest.raises(Refused) as full, tenant.branch_of(1):
            pass
        answer = response_of(full.value)
    assert (answer.status_code, json.loads(bytes(answer.body))["code"]) == (503, "busy")
    assert int(answer.headers["retry-after"]) >= 1
    with tenant.branch_of(1):
        assert tenant.branching == 1
    assert tenant.branching == 0


async def test_snapshots_that_are_being_taken_count(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    who = dataclasses.replace(NOBODY, quota=Quota(snapshots=2))
    listed: list[Snapshot] = []

    async def snapshots() -> tuple[Snapshot, ...]:
        return tuple(listed)

    monkeypatch.setattr(tenant, "snapshots", snapshots)
    async with tenant.keeping(who, "a"):
        async with tenant.keeping(who, "b"):
            with pytest.raises(Refused) as full:
                async with tenant.keeping(who, "c"):
                    pass
            # It is listed while its maker still writes it.
            listed.append(SimpleNamespace(name="b"))
        async with tenant.keeping(who, "b"):  # in its own place
            pass
        with pytest.raises(Refused):
            await tenant.check_snapshots(who)
    assert full.value.status == 429
    await tenant.check_snapshots(who)


def test_room_for_a_stream_is_given_back_by_one_that_fails(tenant: Tenant) -> None:
    for _ in range(NOBODY.quota.streams + 1):
        with pytest.raises(OSError, match="gone"), tenant.streaming(NOBODY):
            raise OSError("gone")
    assert tenant.streams == 0
