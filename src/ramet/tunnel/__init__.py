"""What a client and a server say to each other: the daemon's and core's conversations, carried over one stream."""
