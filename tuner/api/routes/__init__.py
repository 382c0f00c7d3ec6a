"""The routes of the API, with one module for each kind of object."""
