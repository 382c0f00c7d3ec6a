"""A fuzzer of the driver's core: a simulated cluster on which everything goes wrong that may go wrong on a real one."""
