"""`tuner serve`: the API in this process, and a supervisor that keeps Ray and the driver host alive in other processes.

The API drives no experiment: it writes to the database and wakes the driver host, a Ray actor. Since Ray and the driver host
run in separate processes, training continues when the API exits or restarts; `tuner serve --stop` shuts them down. This process
does not connect to Ray, since a Ray crash could kill it. A child process (`tuner.hosts.on_ray.link`) connects instead.
"""
