"""A rank's process: everything around the training function.

`worker` runs a rank's segments; `ray_rank` makes the rank a Ray actor, and `local_rank` a plain process. `function`
loads and calls the training function, `sending` sends reports and logs, and `measures` measures resource usage.
`rendezvous` sets up torch.distributed, and `gradient_sync` warns of ranks that train separate models. `hygiene` prepares
the process for the next trial: `python_state` and `torch_state` restore what the last one changed. `threads` limits the
threads of numerical libraries.
"""
