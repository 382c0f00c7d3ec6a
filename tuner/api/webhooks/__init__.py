"""Send events to the URLs that users have set."""
