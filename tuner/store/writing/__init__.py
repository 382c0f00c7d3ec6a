"""Write what a driver commits in one transaction as rows, and read the log back from them."""
