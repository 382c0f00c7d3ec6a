"""Worker groups, as the driver host sees them: it gets them, runs segments on them, and says why one failed.

The manager, which runs segments, belongs here (`manager`), the pool of warm groups and of reservations (`pool`), the choice of
ranks for processes (`placement`), jobs on a node after its rank (`nodes`), and the causes of failures in words (`failures`).
"""
