"""What a client and a server say to each other: talk with daemon and core, carried over one stream."""
