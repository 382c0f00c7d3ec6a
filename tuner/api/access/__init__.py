"""Decide who may call: tokens, sessions, sign-in with a provider, checks of every request."""
