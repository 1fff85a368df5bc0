"""Snapshots on disk. Knows nothing of core, sandboxes or requests: descriptors go in, descriptors come out.

`docs/internals/image.md` describes the format; `Store` is the way in.
"""

from __future__ import annotations

from ramet.store.files import MappedFile
from ramet.store.ids import IdMap
from ramet.store.loadable import Loadable
from ramet.store.models import Base, Exported, LoadedBase, ParentRef, SnapshotInfo
from ramet.store.places import data_path
from ramet.store.store import Store

__all__ = [
    "Base",
    "Exported",
    "IdMap",
    "Loadable",
    "LoadedBase",
    "MappedFile",
    "ParentRef",
    "SnapshotInfo",
    "Store",
    "data_path",
]
