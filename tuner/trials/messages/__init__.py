"""The messages between the driver host, the worker groups and the ranks, and how they are sent.

`launch` defines the data and the interfaces of a segment, `protocol` those of a group. Messages are sent through
sockets between ranks (`channel`), sockets for reports and logs to the driver (`report_socket`), calls of the driver's
actor (`rpc`), and tasks on a given node (`tasks`). These modules know nothing about checkpoints or training functions.
"""
