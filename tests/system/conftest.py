"""What tests of real sandboxes share."""

from system._daemons import own, rooted, shared

__all__ = ["own", "rooted", "shared"]
