"""`ramet doctor`: what this machine has of what Ramet needs, and the one command that mends what it lacks.

`run_checks` looks without changing anything. The kernel's answers come from core's verb `probe`, which
really makes a user namespace and tries each step in it; where there is no core to ask, from /proc. The
table of checks is in `_table`, one module beside it for each subject.
"""

from ramet.doctor._host import Host, Probe
from ramet.doctor._model import Check, Status
from ramet.doctor._table import CHECKS, run_checks

__all__ = ["CHECKS", "Check", "Host", "Probe", "Status", "run_checks"]
