"""Look after the experiments of a host: find those to drive, divide the cluster between them, clean up after dead hosts."""
