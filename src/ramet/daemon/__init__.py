"""The daemon: one ordinary process per user that serves the operations table, started on demand."""
