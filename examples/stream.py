"""Shows output while the command runs, and ends the command when enough was seen."""

import sys

import ramet


class Enough(Exception):
    """Raised to end the run."""


class Screen:
    """Passes ten kilobytes of output on."""

    left = 10_000

    def show(self, chunk: bytes) -> None:
        """Called with each piece of output."""
        sys.stdout.write(chunk[: self.left].decode("utf-8", "replace"))
        self.left -= len(chunk)
        if self.left <= 0:
            raise Enough


try:
    ramet.run("n=0; while :; do n=$((n + 1)); echo line $n; done", on_stdout=Screen().show)
except Enough:
    print("\n... and so on; the sandbox is gone")
