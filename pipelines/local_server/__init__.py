"""The shared parts of our servers on loopback: a process that ends with ours, held ports."""
