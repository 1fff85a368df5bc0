#!/usr/bin/env python3
"""Writes spec/openapi.json, the description of what `ramet serve` answers, from the routes themselves.

gen_openapi.py            write it
gen_openapi.py --check    write nothing; exit 1 if it is stale
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "spec/openapi.json"


def generated() -> str:
    """The description as it has to be."""
    from ramet.server.app import make_app
    from ramet.server.guard import Audit
    from ramet.server.settings import Settings

    with tempfile.TemporaryDirectory() as data:
        guard = make_app(Settings(data), None, Audit(None))
    return json.dumps(guard.description(), indent=1, sort_keys=True) + "\n"


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description="write spec/openapi.json")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = generated()
    if options.check:
        if not TARGET.exists() or TARGET.read_text() != text:
            print(f"{TARGET.relative_to(ROOT)} is stale: scripts/gen_openapi.py writes it")
            return 1
        return 0
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
