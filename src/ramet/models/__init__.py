"""What crosses every border of Ramet: requests, results, limits and names. Standard library only."""
