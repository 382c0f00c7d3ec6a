"""Write drivers' batches as rows, and read the log back from those rows."""
