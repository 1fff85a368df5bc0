"""The only door to core, the C program: find it, start it, speak to it. core/PROTOCOL.md is the contract."""
