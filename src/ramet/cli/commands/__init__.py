"""One module for each command. What takes long to import is imported inside the command that needs it."""
