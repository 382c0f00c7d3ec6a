"""Drivers on Ray: the actor in which they live, and what it needs of Ray, of other processes and of the store."""
