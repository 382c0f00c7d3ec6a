"""Carry out commands on a service."""
