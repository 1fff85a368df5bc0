"""What the daemon does with sandboxes: roots, plans, runs, and the core that carries them out."""
