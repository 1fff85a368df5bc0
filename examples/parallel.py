"""Runs a hundred commands at once, and tells how long all of them took."""

import asyncio
import time

import ramet


async def main() -> None:
    """Start them together and wait for all."""
    begin = time.perf_counter()
    results = await asyncio.gather(*(ramet.arun(["sh", "-c", f"echo {n}"]) for n in range(100)))
    seconds = time.perf_counter() - begin
    print(results[0].stdout.strip(), results[1].stdout.strip(), "...", results[99].stdout.strip())
    print(f"{len(results)} sandboxes in {seconds * 1000:.0f} ms")


asyncio.run(main())
