"""Freeze-thaw's decisions: what trains next, how much training is done in total, and the reasons in words."""
