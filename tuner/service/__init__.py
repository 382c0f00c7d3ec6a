"""`tuner serve`: the API in this process, and a supervisor that keeps Ray and the driver host alive in other processes.

The API drives no experiment: it writes to the database and wakes the driver host, a Ray actor. Since Ray and the driver host
run in separate processes, training continues when the API ends or restarts; `tuner serve --stop` ends them too. This process
does not connect to Ray, since a crash of Ray could end it. A child process (`tuner.hosts.ray.link`) connects instead.
"""
