"""Trials on agents: programs on other machines that get trials over HTTP and report their metrics.

A segment waits here until an agent asks for one. The agent then holds the segment under a *lease*. The lease ends when the
segment ends. It also ends if the agent sends nothing for too long; the trial is then started again from its newest checkpoint.
The API passes agents' requests on to `AgentGroups.answer`; requests and answers are JSON. An agent repeats a request whose
answer was lost, so a request may arrive twice but takes effect once.
"""
