"""Driver hosts on Ray: start one, find the one that services share, and call it on behalf of a service."""
