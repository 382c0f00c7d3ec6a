"""What the driver host, the worker groups and the ranks say to each other, and how it gets there.

The data and the ports of a segment (`launch`) and of a group (`protocol`) belong here, and so do the ways of sending: sockets
between ranks (`channel`), a socket for reports to the driver (`report_socket`), calls of the driver's actor (`rpc`), and tasks
on a given node (`tasks`). Nothing here knows what a checkpoint or a training function is.
"""
