"""The messages between the driver host, the worker groups and the ranks, and how they are sent.

`launch` defines the messages between the driver host and a worker group, `protocol` those between the group manager and
the ranks, and `lost` the errors about ranks that have exited. Messages are sent through sockets between ranks (`channel`),
sockets from ranks to the driver (`report_socket`), calls to the driver's actor (`rpc`), and tasks on a given node
(`tasks`). None of these modules depends on checkpoints or training functions.
"""
