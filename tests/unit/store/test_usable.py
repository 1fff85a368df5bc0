"""A whole snapshot is refused where it cannot run: another kernel, processor, or other files of the host."""

import os

import pytest

from ramet.errors import SnapshotUnusable
from ramet.store import Base, machine
from ramet.store import store as module
from unit.store.material import left_in, save


@pytest.fixture
def elsewhere(monkeypatch):
    """Pretend that snapshots are loaded on another machine."""

    def pretend(**changes):
        from dataclasses import replace

        other = replace(machine.here(), **changes)
        monkeypatch.setattr(module.machine, "here", lambda: other)

    return pretend


def refusal(store, name="x"):
    with pytest.raises(SnapshotUnusable) as caught:
        store.load(name)
    assert caught.value.snapshot == name
    assert left_in(store) == []
    return caught.value


def test_another_kernels_vdso_is_refused_and_both_kernels_are_named(store, elsewhere):
    save(store, "x")
    elsewhere(vdso="0" * 32, kernel="99.1-other")
    error = refusal(store)
    assert error.code == "vdso_differs"
    assert os.uname().release in error.message
    assert "99.1-other" in error.message


def test_another_release_with_the_same_vdso_is_fine(store, elsewhere):
    save(store, "x")
    elsewhere(kernel="99.1-other")
    store.load("x").close()


def test_missing_instructions_are_named(store, elsewhere):
    features = machine.here().features
    save(store, "x")
    elsewhere(features=features[2:])
    error = refusal(store)
    assert error.code == "processor_lacks"
    assert all(feature in error.message for feature in features[:2])


def test_more_instructions_do_no_harm(store, elsewhere):
    save(store, "x")
    elsewhere(features=(*machine.here().features, "avx1024"))
    store.load("x").close()


def test_another_architecture_is_refused(store, elsewhere):
    save(store, "x")
    elsewhere(arch="riscv64", features=())
    assert "riscv64" in refusal(store).message


def test_flags_that_no_program_can_use_are_not_asked_for():
    cpuinfo = "flags\t\t: fpu sse4_2 avx2 nx tsc_known_freq arch_capabilities amx_int8 hypervisor\n"
    assert machine.processor_features(cpuinfo) == ("amx_int8", "avx2", "sse4_2")
    assert (
        machine.processor_features("Features\t: fp asimd\n") == ("asimd", "fp")
        or os.uname().machine == "x86_64"
    )


def test_only_what_every_processor_can_do_counts():
    cpuinfo = "flags\t: avx avx2\nflags\t: avx\n"
    assert machine.processor_features(cpuinfo) == ("avx",)


def test_this_kernels_vdso_is_read():
    assert machine.vdso()[:4] == b"\x7fELF"
    assert machine.here() == machine.here()


# --- mapped files -----------------------------------------------------------------------------------------


@pytest.fixture
def library(store, tmp_path):
    """A file of the host that a snapshot's process has mapped."""
    file = tmp_path / "libx.so"
    file.write_bytes(b"code" * 1000)
    save(store, "x", base=Base("root", b"recipe", (("/usr/lib/libx.so", str(file)),)))
    return file


def test_the_files_of_an_unchanged_host_are_fine(store, library):
    with store.load("x") as loaded:
        (file,) = loaded.base.files
        assert (file.path, file.source) == ("/usr/lib/libx.so", str(library))


def test_a_file_that_was_installed_again_with_the_same_content_is_fine(store, library):
    library.rename(library.with_name("old"))
    library.write_bytes(b"code" * 1000)
    store.load("x").close()


def test_a_file_of_the_same_size_and_time_with_other_content_is_named(store, library):
    status = library.stat()
    library.write_bytes(b"CODE" * 1000)
    os.utime(library, ns=(status.st_atime_ns, status.st_mtime_ns))
    error = refusal(store)
    assert error.code == "root_changed"
    assert "/usr/lib/libx.so" in error.message
    assert str(library) in error.message


def test_a_file_of_another_size_is_named(store, library):
    library.write_bytes(b"code")
    assert "has changed from 4000 to 4 bytes" in refusal(store).message


def test_a_file_that_is_gone_is_named(store, library):
    library.unlink()
    assert "No such file" in refusal(store).message


def test_a_file_that_is_gone_when_the_snapshot_is_saved_is_left_to_core(store, tmp_path):
    save(store, "y", base=Base("root", b"recipe", (("/a", str(tmp_path / "missing")),)))
    with store.load("y") as loaded:
        assert loaded.base.files == ()
