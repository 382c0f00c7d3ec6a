"""Send reports, the log and notes of uploads from a rank to the driver host."""
