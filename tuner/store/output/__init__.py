"""Store what ranks print, and the resources that they use."""
