"""A rank's process: everything around the training function that is not called by it.

The Ray actor belongs here (`worker`), the loading and calling of the function (`code`, `calling`), the setting up of
torch.distributed (`rendezvous`), the sending of reports (`outbox`), what the process prints and uses (`logs`, `process_stats`),
and what makes the process ready for the next trial (`hygiene`, `modules`, `directories`).
"""
