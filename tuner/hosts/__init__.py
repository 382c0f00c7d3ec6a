"""Driver hosts: the actors or threads in which drivers run, and the parts that a host needs."""
