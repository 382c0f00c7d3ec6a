"""The cluster's nodes, as the driver host sees them: which are alive, cut off, or may still be added.

`nodes` has the functions that run on a rank's node after the rank has exited.
"""
