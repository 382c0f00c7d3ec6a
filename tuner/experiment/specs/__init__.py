"""Check specs, and changes to them."""
