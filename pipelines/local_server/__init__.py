"""What our servers on loopback share: a process that ends with ours, ports that are held."""
