"""What the doctor says of made-up machines, and that it never breaks on a real one."""

import dataclasses
import json
import os
import re
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.doctor import CHECKS, Check, Host, Probe, run_checks
from ramet.native.locate import SYSTEM_PROGRAM
from unit.doctor import machines
from unit.engine import elves

DATA = Path(__file__).resolve().parents[3] / "src/ramet/doctor/data/apparmor"


@pytest.fixture
def healthy(tmp_path: Path) -> Host:
    return machines.healthy(tmp_path)


def ask(host: Host, name: str) -> Check:
    """The answer of one check."""
    (check,) = run_checks(host, tuple(row for row in CHECKS if row[0] == name))
    assert check.name == name
    assert "the check itself broke" not in check.detail
    return check


# --- all together


def test_a_healthy_machine_passes_every_check(healthy):
    answers = {check.name: check.status for check in run_checks(healthy) if check.name != "default-root"}
    assert answers == {name: "pass" for name, _ in CHECKS if name != "default-root"}


def test_this_machine_is_answered_in_full():
    checks = run_checks()
    assert [check.name for check in checks] == [name for name, _ in CHECKS]
    assert not [check for check in checks if "the check itself broke" in check.detail]


def test_answers_are_json(healthy):
    rows = json.loads(json.dumps([check.to_dict() for check in run_checks(machines.untried(healthy))]))
    assert all(set(row) == {"name", "status", "detail", "fix"} for row in rows)


def test_a_check_that_breaks_names_itself_and_hides_no_other(healthy):
    def broken(_: Host) -> Check:
        raise ZeroDivisionError("oops")

    first, second = run_checks(healthy, (("broken", broken), CHECKS[0]))
    assert (first.name, first.status) == ("broken", "fail")
    assert "ZeroDivisionError: oops" in first.detail
    assert second.status == "pass"


def test_an_empty_machine_breaks_no_check(tmp_path):
    checks = run_checks(Host(root=tmp_path))
    assert not [check for check in checks if "the check itself broke" in check.detail]


@pytest.mark.parametrize("change", [machines.untried, machines.ubuntu, machines.docker, machines.disown])
def test_fixes_are_single_lines(healthy, change):
    for check in run_checks(change(healthy)):
        assert check.status != "pass" or check.fix is None
        assert check.fix is None or ("\n" not in check.fix and check.fix.strip())


# --- kernel


def test_a_kernel_too_old_fails_with_what_it_lacks(healthy):
    check = ask(replace(healthy, release="5.10.0-8-amd64"), "kernel")
    assert check.status == "fail"
    assert "need 5.15" in check.detail
    assert "PAGEMAP_SCAN" in check.detail


def test_a_kernel_between_runs_commands_and_lacks_by_name(healthy):
    check = ask(replace(healthy, release="6.5.0"), "kernel")
    assert check.status == "warn"
    assert "PAGEMAP_SCAN" in check.detail
    assert "MADV_COLLAPSE" not in check.detail


def test_an_upgrade_is_the_distributions_own(healthy):
    machines.write(healthy, "/etc/os-release", 'ID=ubuntu\nVERSION_ID="22.04"\nVERSION_CODENAME=jammy\n')
    fix = ask(replace(healthy, release="5.4.0"), "kernel").fix
    assert fix == "sudo apt-get install -y linux-generic-hwe-22.04"


def test_a_hostile_os_release_gives_no_command(healthy):
    machines.write(healthy, "/etc/os-release", 'ID=ubuntu\nVERSION_ID="22.04; rm -rf /"\n')
    assert ask(replace(healthy, release="5.4.0"), "kernel").fix is None


def test_another_processor_fails(healthy):
    assert ask(replace(healthy, machine="aarch64"), "architecture").status == "fail"


def test_a_missing_kernel_interface_is_named(healthy):
    check = ask(replace(healthy, probe=machines.probe(move_mount_detached="ENOSYS")), "kernel-features")
    assert check.status == "fail"
    assert "move-mount-detached: ENOSYS" in check.detail


@pytest.mark.parametrize("name", ["pagemap_scan", "idmapped_mount", "a_probe_of_a_later_core"])
def test_a_missing_nicety_is_a_warning(healthy, name):
    check = ask(replace(healthy, probe=machines.probe(**{name: "EINVAL"})), "kernel-features")
    assert check.status == "warn"
    assert name.replace("_", "-") in check.detail


def test_what_only_saves_time_is_no_warning(healthy):
    check = ask(replace(healthy, probe=machines.probe(detached_layers="EINVAL")), "kernel-features")
    assert check.status == "pass"
    assert "detached-layers" not in check.detail


def test_a_kernel_without_seccomp_fails(healthy):
    Path(healthy.path("/proc/sys/kernel/seccomp/actions_avail")).unlink()
    assert ask(machines.untried(healthy), "seccomp").status == "fail"
    assert ask(replace(healthy, probe=machines.probe(seccomp_filter="EINVAL")), "seccomp").status == "fail"


def test_a_missing_seccomp_action_is_named(healthy):
    machines.write(healthy, "/proc/sys/kernel/seccomp/actions_avail", "kill_process errno allow\n")
    assert "user_notif" in ask(healthy, "seccomp").detail


# --- core


def test_a_missing_core_fails_with_the_reason(healthy):
    check = ask(machines.untried(healthy), "program")
    assert check.status == "fail"
    assert check.detail == "it is missing"
    assert check.fix


def test_a_dynamic_core_fails(healthy, tmp_path):
    program = elves.write(tmp_path / "dynamic", interpreter="/lib/ld.so")
    assert "is not static" in ask(replace(healthy, program=program), "program").detail


def test_a_core_of_another_version_fails_with_both(healthy):
    check = ask(replace(healthy, program_version="0.0.1"), "program")
    assert check.status == "fail"
    assert "0.0.1" in check.detail


def test_a_core_that_does_not_answer_fails(healthy):
    assert (
        "does not answer" in ask(replace(healthy, probe=Probe(fault="Exec format error")), "program").detail
    )


def test_answers_of_core_are_read_line_by_line():
    probe = Probe.parse("userns\tok\t\nproc\t1\tOperation not permitted\n\nnoise\nx\tENOSYS\n")
    assert probe.results == {
        "userns": ("ok", ""),
        "proc": ("EPERM", "Operation not permitted"),
        "x": ("ENOSYS", ""),
    }
    assert probe.ok("never-asked") is None
    assert probe.refused("userns", "proc") == ["proc: EPERM Operation not permitted"]


@pytest.mark.parametrize(
    "script, words",
    [
        ("#!/nonexistent\n", "No such file"),
        ("#!/bin/sh\necho broken >&2; exit 3\n", "broken"),
        ("#!/bin/sh\nexit 3\n", "ended with 3"),
        ("#!/bin/sh\n", "said nothing"),
    ],
)
def test_a_core_that_fails_is_a_finding(tmp_path, script, words):
    program = tmp_path / "core"
    program.write_text(script)
    program.chmod(0o755)
    assert words in (Probe.run(program).fault or "")


# --- user namespaces


def test_namespaces_switched_off_by_a_limit_are_switched_on_by_it(healthy):
    machines.write(healthy, "/proc/sys/user/max_user_namespaces", "0\n")
    check = ask(replace(healthy, probe=machines.probe(userns="ENOSPC")), "user-namespaces")
    assert check.status == "fail"
    assert check.fix == "sudo sysctl -w user.max_user_namespaces=16384"


def test_namespaces_switched_off_for_users_are_switched_on(healthy):
    machines.write(healthy, "/proc/sys/kernel/unprivileged_userns_clone", "0\n")
    check = ask(replace(healthy, probe=machines.probe(userns="EPERM")), "user-namespaces")
    assert check.fix == "sudo sysctl -w kernel.unprivileged_userns_clone=1"


@pytest.mark.parametrize("change", [lambda host: host, machines.untried])
def test_a_kernel_without_user_namespaces_fails(healthy, change):
    Path(healthy.path("/proc/self/ns/user")).unlink()
    host = replace(healthy, probe=machines.probe(userns="EINVAL"))
    assert "CONFIG_USER_NS" in ask(change(host), "user-namespaces").detail


def test_namespaces_that_could_not_be_tried_are_a_warning(healthy):
    assert ask(machines.untried(healthy), "user-namespaces").status == "warn"


def test_ubuntu_is_told_the_one_command_that_installs_core_with_its_profile(healthy):
    host = machines.ubuntu(healthy)
    for name in ("user-namespaces", "apparmor"):
        check = ask(host, name)
        assert check.status == "fail"
        match = re.fullmatch(r"sudo sh (\S+) (\S+/ramet-core)", check.fix or "")
        assert match
        assert Path(match[1]).is_file()
    assert "apparmor_restrict_unprivileged_userns" in ask(host, "apparmor").detail
    assert ask(host, "namespaces").status == "warn"


def test_ubuntu_with_the_profile_installed_passes(healthy):
    host = replace(machines.ubuntu(healthy), probe=machines.probe(), program=SYSTEM_PROGRAM)
    check = ask(host, "apparmor")
    assert check.status == "pass"
    assert str(SYSTEM_PROGRAM) in check.detail


def test_root_is_not_restricted_by_apparmor(healthy):
    assert ask(replace(machines.ubuntu(healthy), uid=0), "apparmor").status == "pass"


def test_a_refused_mount_is_named(healthy):
    check = ask(replace(healthy, probe=machines.probe(proc="EPERM")), "namespaces")
    assert check.status == "fail"
    assert "proc: EPERM" in check.detail


def test_an_overlay_that_is_no_module_yet_is_loaded(healthy):
    machines.write(healthy, "/proc/filesystems", "nodev\tproc\n")
    check = ask(replace(healthy, probe=machines.probe(overlay_userxattr="ENODEV")), "overlay")
    assert check.status == "fail"
    assert check.fix == "sudo modprobe overlay"


def test_an_overlay_without_attributes_is_a_warning(healthy):
    check = ask(replace(healthy, probe=machines.probe(tmpfs_xattr="EOPNOTSUPP")), "overlay")
    assert check.status == "warn"


def test_too_few_namespaces_are_raised_all_at_once(healthy):
    machines.write(healthy, "/proc/sys/user/max_net_namespaces", "0\n")
    machines.write(healthy, "/proc/sys/user/max_pid_namespaces", "100\n")
    check = ask(healthy, "limits")
    assert check.status == "fail"
    assert check.fix == ("sudo sysctl -w user.max_pid_namespaces=16384 user.max_net_namespaces=16384")


@pytest.mark.parametrize(
    "processes, status, fix",
    [
        ((-1, -1), "pass", None),
        ((4096, 4096), "pass", None),
        ((500, 4096), "warn", "ulimit -u 4096"),
        ((500, -1), "warn", "ulimit -u 8192"),
        ((500, 500), "warn", "sudo prlimit --pid $$ --nproc=8192"),
        ((20, 20), "fail", "sudo prlimit --pid $$ --nproc=8192"),
    ],
)
def test_too_few_processes_are_raised_as_far_as_one_may(healthy, processes, status, fix):
    check = ask(replace(healthy, processes=processes), "limits")
    assert (check.status, check.fix) == (status, fix)


# --- containers


def test_docker_is_told_the_flags_that_its_profile_lacks(healthy):
    check = ask(machines.docker(healthy), "container")
    assert check.status == "fail"
    assert check.fix == (
        "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
        "--security-opt systempaths=unconfined IMAGE"
    )


def test_docker_is_told_only_what_is_lacking(healthy):
    host = replace(machines.docker(healthy), probe=machines.probe(proc="EPERM"))
    machines.write(host, "/proc/self/attr/current", "unconfined\n")
    machines.write(host, "/proc/self/status", "Seccomp:\t0\n")
    assert ask(host, "container").fix == "docker run --security-opt systempaths=unconfined IMAGE"


def test_a_container_that_lacks_nothing_passes(healthy):
    host = replace(machines.docker(healthy), probe=machines.probe())
    check = ask(host, "container")
    assert check.status == "pass"
    assert "docker" in check.detail


def test_a_container_without_core_to_ask_is_warned_of_what_is_seen(healthy):
    check = ask(machines.untried(machines.docker(healthy)), "container")
    assert check.status == "warn"
    assert "seccomp=unconfined" in (check.fix or "")


def test_podman_is_told_in_its_own_words(healthy):
    host = machines.docker(healthy)
    machines.write(host, "/run/.containerenv", "")
    check = ask(host, "container")
    assert "podman" in check.detail
    assert "--security-opt unmask=ALL" in (check.fix or "")


def test_kubernetes_is_told_a_patch(healthy):
    host = replace(machines.docker(healthy), environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    fix = ask(host, "container").fix or ""
    patch = json.loads(fix.split("'")[1])
    pod = patch["spec"]["template"]["spec"]
    assert pod["hostUsers"] is False
    assert pod["containers"][0]["securityContext"] == {
        "seccompProfile": {"type": "Unconfined"},
        "appArmorProfile": {"type": "Unconfined"},
        "procMount": "Unmasked",
    }


@pytest.mark.parametrize(
    "line, kind",
    [
        ("0::/kubepods.slice/x", "kubernetes"),
        ("0::/machine.slice/libpod-1.scope", "podman"),
        ("1:name=systemd:/docker/abc", "docker"),
        ("0::/lxc.payload.one", "lxc"),
    ],
)
def test_a_container_is_known_by_its_cgroup(healthy, line, kind):
    machines.write(healthy, "/proc/1/cgroup", f"{line}\n")
    assert f"({kind})" in ask(healthy, "container").detail


# --- ids


def test_missing_subordinate_ids_are_given_from_a_range_that_nobody_has(healthy):
    for path in ("/etc/subuid", "/etc/subgid"):
        machines.write(healthy, path, "other:100000:65536\nthird:231072:65536\n")
    check = ask(healthy, "subuids")
    assert check.status == "warn"
    assert "single_uid" in check.detail
    assert check.fix == ("sudo usermod --add-subuids 296608-362143 --add-subgids 296608-362143 me")


def test_subordinate_ids_by_number_count(healthy):
    for path in ("/etc/subuid", "/etc/subgid"):
        machines.write(healthy, path, f"{healthy.uid}:100000:65536\n")
    assert ask(healthy, "subuids").status == "pass"


def test_a_missing_newuidmap_is_installed(healthy):
    Path(healthy.path("/usr/bin/newuidmap")).unlink()
    machines.write(healthy, "/usr/bin/apt-get", "")
    check = ask(healthy, "subuids")
    assert "newuidmap is not installed" in check.detail
    assert check.fix == "sudo apt-get install -y uidmap"


def test_a_newuidmap_without_rights_gets_them_back(healthy):
    os.chmod(healthy.path("/usr/bin/newgidmap"), 0o755)
    check = ask(healthy, "subuids")
    assert "newgidmap is neither set-user-id" in check.detail
    assert check.fix == "sudo chmod u+s /usr/bin/newgidmap"


def test_no_new_privs_is_named_as_what_defuses_newuidmap(healthy):
    machines.write(healthy, "/proc/self/status", "NoNewPrivs:\t1\n")
    check = ask(healthy, "subuids")
    assert check.status == "warn"
    assert "no_new_privs" in check.detail


def test_root_needs_no_subordinate_ids(healthy):
    Path(healthy.path("/etc/subuid")).unlink()
    assert ask(replace(healthy, uid=0), "subuids").status == "pass"


# --- the runtime directory


def test_a_runtime_directory_that_is_open_to_others_fails_with_the_command_that_closes_it(healthy):
    assert ask(healthy, "runtime-directory").status == "pass"
    path = f"/tmp/ramet-{healthy.uid}"
    Path(healthy.path(path)).mkdir(mode=0o755)
    machines.own(healthy, path)
    check = ask(healthy, "runtime-directory")
    assert (check.status, check.fix) == ("fail", f"chmod 700 {path}")
    os.chmod(healthy.path(path), 0o700)
    assert ask(healthy, "runtime-directory") == Check("runtime-directory", "pass", path)
    assert "belongs to uid" in ask_at(machines.disown(healthy), path).detail


def ask_at(host: Host, path: str) -> Check:
    return ask(dataclasses.replace(host, environment={"RAMET_RUNTIME_DIR": path}), "runtime-directory")


def test_a_runtime_directory_that_cannot_be_made_fails(healthy):
    assert "there is no /nowhere" in ask_at(healthy, "/nowhere/ramet").detail
    os.symlink("/tmp", healthy.path("/tmp/link"))
    check = ask_at(healthy, "/tmp/link")
    assert "a link to one" in check.detail
    assert "RAMET_RUNTIME_DIR" in (check.fix or "")


# --- cgroups


def test_the_widest_delegated_cgroup_is_named_with_what_it_holds(healthy):
    place = f"/sys/fs/cgroup{machines.USER_CGROUP}"
    held = "cgroup v2 holds cpu, memory, pids, io"
    assert ask(healthy, "cgroups").detail == f"{held}; delegated from {place}"
    os.unlink(healthy.path("/sys/block/vda/size"))
    assert "pids; io is refused, there is no disk" in ask(healthy, "cgroups").detail
    machines.write(healthy, f"{place}/cgroup.controllers", "cpu memory pids\n")
    assert "pids; io is refused, no controller for it" in ask(healthy, "cgroups").detail


def test_cgroups_that_are_switched_off_are_not_said_to_be_had(healthy):
    off = dataclasses.replace(healthy, environment={**healthy.environment, "RAMET_CGROUPS": "none"})
    check = ask(off, "cgroups")
    assert (check.status, check.fix) == ("warn", "unset RAMET_CGROUPS")
    assert check.detail.startswith("core's watcher holds memory")
    wrong = dataclasses.replace(healthy, environment={**healthy.environment, "RAMET_CGROUPS": "maybe"})
    assert ask(wrong, "cgroups").status == "fail"


def test_where_nobody_delegates_root_hands_a_cgroup_over_to_the_shell(healthy):
    shutil.rmtree(healthy.path("/run/systemd"))
    machines.write(healthy, "/proc/self/cgroup", "0::/\n")
    other = machines.disown(healthy)
    fix = ask(other, "cgroups").fix or ""
    assert 'echo "+cpu +io +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control' in fix
    assert f"d=$p/ramet-{other.uid}; mkdir -p $d && chown {other.uid} $d $d/cgroup.procs" in fix
    assert "echo '$$' >$d/cgroup.procs" in fix
    machines.write(healthy, "/sys/fs/cgroup/cgroup.type", "domain\n")
    assert ask(other, "cgroups").fix is None


def test_a_cgroup_that_is_not_delegated_is_a_warning(healthy):
    check = ask(machines.disown(healthy), "cgroups")
    assert check.status == "warn"
    assert "not delegated" in check.detail
    assert (check.fix or "").startswith("systemd-run --user --scope")


def test_missing_controllers_are_named_and_delegated(healthy):
    machines.write(healthy, f"/sys/fs/cgroup{machines.USER_CGROUP}/cgroup.controllers", "memory pids\n")
    check = ask(healthy, "cgroups")
    assert check.status == "warn"
    assert "without cpu" in check.detail
    assert "Delegate=cpu" in (check.fix or "")


def test_swap_that_is_not_counted_is_a_warning(healthy):
    own = f"/sys/fs/cgroup{machines.USER_CGROUP}"
    machines.write(healthy, f"{own}/memory.max", "max\n")
    machines.write(healthy, "/etc/default/grub", "")
    assert ask(healthy, "cgroups").status == "pass"
    machines.write(healthy, "/proc/swaps", "Filename\n/dev/vdb\n")
    check = ask(healthy, "cgroups")
    assert (check.status, "swapaccount=1" in (check.fix or "")) == ("warn", True)
    assert "core's watcher" in check.detail
    machines.write(healthy, f"{own}/memory.swap.max", "max\n")
    assert ask(healthy, "cgroups").status == "pass"


def test_a_hybrid_hierarchy_is_told_apart(healthy):
    machines.write(
        healthy,
        "/proc/self/mountinfo",
        "21 1 0:6 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "22 1 0:7 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    )
    machines.write(healthy, "/sys/fs/cgroup/unified/cgroup.controllers", "\n")
    machines.write(healthy, "/etc/default/grub", "")
    check = ask(healthy, "cgroups")
    assert check.status == "warn"
    assert "hybrid" in check.detail
    assert "systemd.unified_cgroup_hierarchy=1" in (check.fix or "")


def test_version_1_is_enough_for_root(healthy):
    mounts = "".join(
        f"2{number} 1 0:{number} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n"
        for number, name in enumerate(("cpu,cpuacct", "memory", "pids"))
    )
    machines.write(healthy, "/proc/self/mountinfo", mounts)
    assert ask(healthy, "cgroups").status == "warn"
    check = ask(dataclasses.replace(healthy, uid=0), "cgroups")
    assert check.status == "pass"
    assert check.detail == "cgroup v1 holds cpu, memory, pids; io is refused, no controller for it"
    fix = ask(healthy, "cgroups").fix or ""
    assert "for p in /sys/fs/cgroup/cpu,cpuacct /sys/fs/cgroup/memory /sys/fs/cgroup/pids; do" in fix
    assert "chown" in fix
    assert "$d/tasks" in fix
    machines.write(healthy, "/proc/self/cgroup", "4:memory:/ramet-1\n3:cpu,cpuacct:/\n")
    machines.write(healthy, "/sys/fs/cgroup/memory/ramet-1/x", "")
    machines.own(healthy, "/sys/fs/cgroup/memory/ramet-1")
    assert ask(healthy, "cgroups").detail.startswith("cgroup v1 holds memory; io")


def test_version_1_and_none_are_warnings(healthy):
    machines.write(
        healthy, "/proc/self/mountinfo", "21 1 0:6 / /sys/fs/cgroup/memory rw - cgroup cgroup rw\n"
    )
    assert "version 1 (memory)" in ask(healthy, "cgroups").detail
    machines.write(healthy, "/proc/self/mountinfo", "")
    assert "no cgroup file system" in ask(healthy, "cgroups").detail


# --- room


@pytest.mark.parametrize("kib, status", [(8_000_000, "pass"), (500_000, "warn"), (50_000, "fail")])
def test_memory_is_judged(healthy, kib, status):
    machines.write(healthy, "/proc/meminfo", f"MemAvailable: {kib} kB\n")
    assert ask(healthy, "memory").status == status


def test_disk_is_looked_at_where_snapshots_will_be(healthy):
    machines.write(healthy, "/data/x", "")
    assert "/data" in ask(replace(healthy, environment={"XDG_DATA_HOME": "/data"}), "disk").detail


# --- the command for Ubuntu


def test_the_profile_names_one_path_and_no_pattern():
    lines = [line.split("#")[0].strip() for line in (DATA / "ramet-core").read_text().splitlines()]
    (profile,) = [line for line in lines if line.startswith("profile ")]
    assert profile == f"profile ramet-core {SYSTEM_PROGRAM} flags=(unconfined) {{"
    assert not [line for line in lines if "*" in line or "@{" in line]


def install(*arguments: str, root: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["sh", str(DATA / "install"), *arguments],
        env={"PATH": "/usr/bin:/bin", "DESTDIR": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_installs_core_and_profile_and_removes_them(tmp_path):
    core = elves.write(tmp_path / "with space" / "ramet-core")
    root = tmp_path / "system"
    for _ in range(2):  # the second replaces the first
        assert install(str(core), root=root).returncode == 0
    program = Path(f"{root}{SYSTEM_PROGRAM}")
    profile = root / "etc/apparmor.d/ramet-core"
    assert program.read_bytes() == core.read_bytes()
    assert stat.S_IMODE(program.stat().st_mode) == 0o755
    assert profile.read_bytes() == (DATA / "ramet-core").read_bytes()
    assert os.listdir(program.parent) == ["ramet-core"]
    assert install("--remove", root=root).returncode == 0
    assert not program.exists()
    assert not profile.exists()


@pytest.mark.parametrize("arguments", [(), ("/nonexistent",), ("/etc/passwd",), ("a", "b")])
def test_the_command_refuses_what_is_no_program(tmp_path, arguments):
    done = install(*arguments, root=tmp_path / "system")
    assert done.returncode == 1
    assert done.stderr.startswith("ramet: ")
    assert not (tmp_path / "system").exists()


def test_packaging_ships_the_same_files():
    packaging = DATA.parents[4] / "packaging/apparmor"
    assert {path.name for path in packaging.iterdir()} == {path.name for path in DATA.iterdir()}
    assert all(path.resolve().parent == DATA for path in packaging.iterdir())
