"""The types of what belongs to the service: access, agents, code bundles, the cluster, health, projects, webhooks."""
