"""The types of what belongs to the service: agents, code bundles, the cluster, health, webhooks."""
