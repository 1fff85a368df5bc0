"""The command line. `main` parses and tells errors; each command is a module of `commands`."""
