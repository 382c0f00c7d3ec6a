"""A rank's process: everything around the training function.

`worker` runs the segments of a rank; `ray_rank` makes the rank a Ray actor, and `local_rank` a plain process. `code`
loads the training function and `calling` calls it. `rendezvous` sets up torch.distributed, and `gradient_sync` warns of
ranks that train separate models. `outbox` sends reports, `logs` and `log_shipper` handle the output, and `process_stats`
measures resource usage. `hygiene`, `modules` and `directories` prepare the process for the next trial.
"""
