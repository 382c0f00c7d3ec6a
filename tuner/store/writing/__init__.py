"""Write the batches that drivers commit as rows, and read the log back from the rows."""
