"""One module for each subject; `ramet.cli._table` says which function is which command.

A module is imported when one of its commands is called, and imports no other of them for that: what several
share is beside this package. What takes long to import is imported inside the command that needs it.
"""
