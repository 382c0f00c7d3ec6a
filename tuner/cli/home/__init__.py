"""Carry out commands on the database of this home, without a service."""
