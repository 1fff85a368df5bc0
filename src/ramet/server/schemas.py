"""What comes and goes as JSON. Fields that forkd has are as it has them; all others are ours and optional."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ramet.models.events import Type


class Asked(BaseModel):
    """A request's body. Types are not converted; fields that are not known are ignored, as forkd does."""

    model_config = ConfigDict(strict=True, extra="ignore")


class ErrorBody(BaseModel):
    """An error. `code` is stable, `error` is for people and may change."""

    model_config = ConfigDict(extra="allow")

    error: str
    code: str
    field: str | None = None
    hint: str | None = None


DETACH = "Only true: what is made here ends by itself, when it is killed, or by its `ttl`."
KEEP_ON = '`["timeout"]`: its state is kept as a snapshot before its `timeout` ends it; `end` names that.'


class ChildRequest(Asked):
    """What one child has of its own."""

    name: str | None = None
    env: dict[str, str] | None = None
    seed: int | None = None
    limits: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None


class SpawnRequest(Asked):
    """Sandboxes forked from a snapshot or template, or a fresh one with a `command` or a `kernel`.

    `env`, `seed`, `limits` and `metadata` are for all alike; with `children` each has its own. Every sandbox
    has its own network namespace, can be forked live, and has huge pages where they help: `per_child_netns`,
    `live_fork`, `prewarm` and `hugepages` ask for what is there already.
    """

    snapshot_tag: str | None = None
    n: int = 1
    per_child_netns: bool = False
    memory_limit_mib: int | None = None
    prewarm: bool = False
    live_fork: bool = False
    hugepages: bool = False
    command: list[str] | str | None = None
    kernel: str | None = None
    root: str | None = Field(None, description="A directory of the host; needs the scope admin.")
    tools: list[str] = Field([], description="More directories of the host; needs the scope admin.")
    cwd: str | None = None
    user: int | str | None = Field(None, description="Whose the command is: a uid, `UID:GID`, `root`.")
    children: list[ChildRequest] | None = None
    names: list[str] | None = None
    env: dict[str, str] | None = None
    seed: int | None = None
    limits: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    timeout: float | None = Field(None, description="Seconds until it is killed.")
    ttl: float | None = Field(None, description="Seconds that it lives with nobody asking for anything.")
    keep_on: list[str] = Field([], description=KEEP_ON)
    detach: bool = Field(default=True, description=DETACH)
    workspace: Any = Field(None, description="Refused: write the files after the start.")
    python: Any = Field(None, description="Refused: it is the server's.")


class ForkRequest(Asked):
    """Children of a running sandbox: `n` with what is told for all, or one for each of `children`."""

    n: int | None = None
    children: list[ChildRequest] | None = None
    names: list[str] | None = None
    env: dict[str, str] | None = None
    seed: int | None = None
    limits: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    timeout: float | None = None
    ttl: float | None = None
    keep_on: list[str] = Field([], description=KEEP_ON)
    detach: bool = Field(default=True, description=DETACH)
    on_unsupported: Literal["refuse", "drop"] = "refuse"
    on_error: Literal["end", "keep"] = "keep"


class ForkWay(BaseModel):
    """How the memory of one process came along."""

    pid: int
    name: str
    way: str
    why: str | None
    copied_bytes: int


class SandboxInfo(BaseModel):
    """One sandbox."""

    id: str
    snapshot_tag: str
    netns: str | None
    guest_addr: str
    created_at_unix: int
    pid: int | None
    memory_limit_mib: int | None
    has_branched: bool
    last_branch_memory_path: str | None
    branch_count: int
    name: str | None = None
    status: Literal["running", "ended"] = "running"
    parent: str | None = None
    kernel: str | None = None
    metadata: dict[str, str] = {}
    ttl: float | None = None
    limits: dict[str, Any] = {}
    enforced_by: dict[str, str] = {}
    epoch: int = 0
    pause_ms: float | None = None
    setup_ms: float = 0.0
    single_uid: bool = True
    ways: list[ForkWay] = []
    dropped: list[str] = []
    command: list[str] = []
    ended: float | None = None
    end: dict[str, Any] | None = None
    note: str | None = None


class ForkChild(BaseModel):
    """What became of one child."""

    number: int
    sandbox: SandboxInfo | None = None
    error: ErrorBody | None = None


class ForkResult(BaseModel):
    """What became of a fork: each child by its number."""

    children: list[ForkChild]
    pause_ms: float | None = None


class ExecRequest(Asked):
    """A command to run to its end."""

    args: list[str]
    timeout_secs: float = Field(30, ge=0)
    env: dict[str, str] | None = None
    cwd: str | None = None
    user: str | int | None = None
    stdin: str | None = None


class ExecResult(BaseModel):
    """How a command ended. A timeout has the exit code 124, and says so."""

    model_config = ConfigDict(extra="allow")

    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool = False
    reason: str = "exit"
    truncated: bool = False


class EvalRequest(Asked):
    """An expression, or any code, for the sandbox's kernel."""

    code: str
    timeout_secs: float | None = Field(None, ge=0)


class EvalResult(BaseModel):
    """The value of the last expression as repr() writes it, or the error."""

    result: str | None
    error: str | None
    exit_code: int
    stdout: str = ""
    stderr: str = ""


class CodeRequest(Asked):
    """Code for the sandbox's kernel, which keeps its state."""

    code: str
    timeout: float | None = None
    context: str | None = None
    stdin: str | None = Field(None, description="Refused: the sandboxes of a server are detached.")


class PingResult(BaseModel):
    """What is alive in the sandbox."""

    pong: bool
    numpy_version: str | None
    pid: int
    agent_lang: str
    warmup_ready: bool


class BranchRequest(Asked):
    """A snapshot of a running sandbox. All modes pause it for the same few milliseconds."""

    tag: str | None = None
    mode: Literal["full", "diff", "live"] | None = None
    diff: bool = False
    live: bool = False
    measure_diff: bool = False
    wait: bool = True
    parent_tag: str | None = None
    metadata: dict[str, Any] | None = None
    on_unsupported: Literal["refuse", "drop"] = "refuse"


class SnapshotRequest(Asked):
    """A snapshot of a fresh sandbox on a directory of the host, which `rootfs` names; needs the scope admin.

    `kernel` and `tap` are of a machine that forkd would boot: `kernel` has to exist, and `tap` is refused.
    """

    tag: str
    kernel: str
    rootfs: str
    rw: bool = False
    tap: str | None = None
    boot_wait_secs: int = 10
    command: list[str] | str | None = None


class RollbackRequest(Asked):
    """The snapshot that a sandbox is to be again."""

    snapshot_tag: str


class PromoteRequest(Asked):
    """Whose place a fork is to take: without `over` that of the sandbox it is a fork of."""

    over: str | None = None


class CompactRequest(Asked):
    """A tag for a copy that builds upon nothing; without `to` the snapshot itself is made such."""

    to: str | None = None


class SnapshotInfo(BaseModel):
    """A snapshot or a template."""

    model_config = ConfigDict(extra="allow")

    tag: str
    dir: str
    created_at_unix: int
    branched_from: str | None = None
    pause_ms: int | None = None
    diff_ms: int | None = None
    diff_physical_bytes: int | None = None
    diff_logical_bytes: int | None = None
    warning: str | None = None
    status: Literal["writing", "ready", "failed"] = "ready"
    bootable: bool = True
    public: bool | None = None


class SnapshotDetail(BaseModel):
    """A snapshot, and those that it builds upon and that build upon it."""

    tag: str
    dir: str
    created_at_unix: int | None = None
    memory_logical_bytes: int
    memory_physical_bytes: int
    vmstate_bytes: int
    parent_tag: str | None = None
    parent_content_hash: str | None = None
    chain_depth: int
    ancestors: list[str]
    dependents: list[str]


class Event(BaseModel):
    """What befell a sandbox or a snapshot. `cursor` is the place right after it; what it has not is left out.

    ``gap`` stands for `missed` events that are not kept any more, or for those of another daemon.
    """

    cursor: str
    time: float
    type: Type
    sandbox: str | None = None
    name: str | None = None
    parent: str | None = None
    snapshot: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    note: str | None = None
    command: int | None = None
    missed: int | None = None


class EventPage(BaseModel):
    """Events in their order, and where the next page begins."""

    events: list[Event]
    cursor: str


class LineageNode(BaseModel):
    """A sandbox or a snapshot, living or not. `above` is the `key` of what it comes from."""

    key: str
    kind: Literal["sandbox", "snapshot", "template"]
    name: str | None
    above: str | None
    created: float
    ended: float | None = None
    how: str | None = None
    command: str = ""
    own: bool = True


class Lineage(BaseModel):
    """Nodes, the oldest first. `note` says what is wrong with what is known, if anything is."""

    nodes: list[LineageNode]
    note: str | None = None


class WorkspaceRequest(Asked):
    """A workspace: a sandbox that can be put away and taken out again."""

    name: str
    snapshot_tag: str
    per_child_netns: bool = False
    memory_limit_mib: int | None = None
    limits: dict[str, Any] | None = None
    env: dict[str, str] | None = None
    metadata: dict[str, str] | None = None


class SuspendRequest(Asked):
    """`diff` changes nothing: only what differs from the snapshot is written in any case."""

    diff: bool = False


class WorkspaceInfo(BaseModel):
    """A workspace."""

    id: str
    name: str
    source_snapshot_tag: str
    current_state_tag: str | None = None
    status: Literal["running", "suspended", "stale"]
    live_sandbox_id: str | None = None
    created_at_unix: int
    last_active_unix: int
    last_branch_memory_path: str | None = None


class RunRequest(Asked):
    """One command in a sandbox of its own."""

    command: list[str] | str
    timeout: float | None = None
    stdin: str | None = None
    env: dict[str, str] | None = None
    cwd: str | None = None
    root: str | None = Field(None, description="A directory of the host; needs the scope admin.")
    limits: dict[str, Any] | None = None


class ProcessRequest(Asked):
    """A command that goes on when nobody listens."""

    command: list[str] | str
    env: dict[str, str] | None = None
    cwd: str | None = None
    user: str | int | None = None
    timeout: float | None = None
    stdin: bool = False


class TerminalRequest(Asked):
    """A terminal with a command in it; without `command` the sandbox's shell."""

    command: list[str] | str | None = None
    rows: int = 24
    columns: int = 80
    env: dict[str, str] | None = None
    cwd: str | None = None
    user: str | int | None = None
    timeout: float | None = None


class SizeRequest(Asked):
    """The size of a terminal."""

    rows: int
    columns: int


class SignalRequest(Asked):
    """A signal, by number or name."""

    signal: int | str


class PathRequest(Asked):
    """Something to do with a file."""

    path: str
    to: str | None = None
    recursive: bool = False
    replace: bool = False
    parents: bool = True
    mode: int | None = None


class TemplateRequest(Asked):
    """A template to build."""

    name: str
    from_: str | None = Field("python", alias="from")
    pip: list[str] = []
    from_venv: bool = Field(default=False, description="Refused: it is the caller's.")
    files: dict[str, str] | None = None
    env: dict[str, str] | None = None
    warm: str | None = None
    kernel: str = "python"
    warm_children: int = 0
