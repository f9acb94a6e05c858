"""From recorded functions to machine code that this process can call, through a cache on disk."""
