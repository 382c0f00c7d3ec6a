"""Send a rank's reports and log to the driver host, and keep track of its uploads."""
