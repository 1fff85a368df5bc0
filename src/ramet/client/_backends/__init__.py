"""How each of the two clients waits for descriptors; the generator swaps one module for the other."""
