"""A rank's process: everything around the training function.

`worker` is the Ray actor, `code` and `calling` load and call the function, `rendezvous` sets up torch.distributed,
`outbox` sends reports, `logs` and `log_shipper` keep what the process prints, `process_stats` measures what it uses,
and `hygiene`, `modules` and `directories` make it ready for the next trial.
"""
