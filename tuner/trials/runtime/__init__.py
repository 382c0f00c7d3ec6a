"""A rank's process: everything around the training function.

`worker` is the rank; `ray_rank` makes it a Ray actor and `local_rank` a plain process. `code` and `calling` load and
call the function, `rendezvous` sets up torch.distributed, `outbox` sends reports, `logs` and `log_shipper` handle the
output, `process_stats` measures resource usage, and `hygiene`, `modules` and `directories` prepare the process for the
next trial.
"""
