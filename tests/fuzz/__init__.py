"""A fuzzer of the driver's core: a make-believe cluster that does everything wrong that a real one may do."""
