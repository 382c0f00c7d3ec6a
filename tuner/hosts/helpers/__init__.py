"""Helper processes of a driver host, for the user's stop functions and for slow searchers."""
