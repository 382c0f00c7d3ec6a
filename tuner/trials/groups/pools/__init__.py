"""Find a worker group for each segment.

`pool` finds it on Ray: `admission` decides which segment is next, by the rule of `fair_share`; `warm` keeps idle groups;
`builder` builds groups and shuts them down; `placement` assigns their ranks to processes. `local_pool` and `local_ranks`
replace `pool` if Ray is not used; `cpus` counts the CPUs of this machine for them. `group` is a worker group.
"""
