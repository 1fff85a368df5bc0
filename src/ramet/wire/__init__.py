"""What client and daemon say to each other: framing, descriptors, the place where they meet."""
