"""Driver hosts: the actor or thread in which drivers run, and the parts that it needs."""
