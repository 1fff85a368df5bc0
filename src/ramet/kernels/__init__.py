"""Kernels: the language processes in sandboxes that keep state between cells, seen by those who start them.

What runs in the sandbox are the sources beside this module; nothing here imports or runs them. A kernel is
described by a `Kernel`, which also knows how its requests are written. docs/reference/kernels.md is the
protocol, and tells how to add a language.
"""

from __future__ import annotations

from ramet.kernels._codec import EVENT_MAX, FRESH, PACKET, BadEvent, Decoder
from ramet.kernels._kernel import Kernel, get, names, register

__all__ = ["EVENT_MAX", "FRESH", "PACKET", "BadEvent", "Decoder", "Kernel", "get", "names", "register"]
