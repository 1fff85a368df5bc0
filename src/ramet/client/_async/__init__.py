"""The client, written by hand once. scripts/unasync.py writes the synchronous one from it."""
