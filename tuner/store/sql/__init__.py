"""The database itself: tables, migrations, connections, transactions, pages of a list."""
