"""What Ramet promises in time and memory, measured beside bubblewrap: ``python -m benchmarks``."""
