"""The guest's seccomp policy: TOML profiles, and the compiler that makes kernel programs of them.

Read policy.py first (what a profile says), then compile.py (how it becomes a program); interpret.py runs
programs in Python, for tests and for `explain`. docs/internals/seccomp.md gives the reason of every decision.
"""

from ramet.seccomp.compile import compile_profile as compile_profile
from ramet.seccomp.compile import default_filter as default_filter
from ramet.seccomp.interpret import explain as explain
from ramet.seccomp.policy import Action as Action
from ramet.seccomp.policy import Case as Case
from ramet.seccomp.policy import Condition as Condition
from ramet.seccomp.policy import PolicyError as PolicyError
from ramet.seccomp.policy import Profile as Profile
from ramet.seccomp.policy import Rule as Rule
from ramet.seccomp.policy import load_profile as load_profile

__all__ = [
    "Action",
    "Case",
    "Condition",
    "PolicyError",
    "Profile",
    "Rule",
    "compile_profile",
    "default_filter",
    "explain",
    "load_profile",
]
