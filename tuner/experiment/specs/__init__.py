"""Check specs, and changes of them."""
