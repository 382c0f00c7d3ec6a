"""The messages between the driver host, the worker groups and the ranks, and how they are sent.

`launch` defines the data and the interfaces of a segment, `protocol` those of a group. Messages go through sockets
between ranks (`channel`), sockets for reports and logs to the driver (`report_socket`), calls of the driver's actor
(`rpc`), and tasks on a given node (`tasks`). Nothing here knows what a checkpoint or a training function is.
"""
