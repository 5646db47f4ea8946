"""The cache of checkpoints on this machine's disk."""

import os
from pathlib import Path

from infra.registry.checkpoints import KEPT, fetch
from infra.storage.store import CHECKSUMS
from tests.tasks.made import MemoryRegistry, MemoryStore


def test_the_disk_keeps_the_most_recently_used_versions(tmp_path: Path) -> None:
    store, names = MemoryStore(), [f"v{n}" for n in range(1, KEPT + 3)]
    registry = MemoryRegistry(**{name: {"cycle": name} for name in names})
    for age, name in enumerate(names):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(name)
        store.put_directory(f"checkpoints/{name}", tmp_path / name)
        folder = fetch(store, registry.client, name[1:], tmp_path / "disk")
        assert (folder / "weights").read_text() == name
        os.utime(folder, (age, age))
        if name != "v1":
            assert fetch(store, registry.client, "1", tmp_path / "disk").is_dir()  # every cycle uses it
    kept = {path.name.split("-")[1] for path in (tmp_path / "disk").iterdir()}
    assert kept == {"1", *(name[1:] for name in names[-KEPT + 1 :])}
    assert store.exists(f"checkpoints/v2/{CHECKSUMS}"), "the store still has the versions removed from the disk"
