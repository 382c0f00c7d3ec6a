"""The decisions of freeze-thaw: what trains next, how much is trained in all, and the reasons in words."""
