# Generated from _async/__init__.py by scripts/unasync.py. Do not edit.
"""The client, written by hand once. scripts/unasync.py writes the synchronous one from it."""
