"""The Ray that driver hosts run on: start it, connect to it, find and start hosts on it, and call it on behalf of a service."""
