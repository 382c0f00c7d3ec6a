"""The Ray that driver hosts run on: start it, connect to it, and end it."""
