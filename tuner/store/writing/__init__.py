"""What a driver writes in one transaction, how it becomes rows, and the log that is read back from them."""
