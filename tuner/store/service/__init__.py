"""Store what belongs to a service rather than to an experiment: tokens, the audit trail, webhooks, the uses of stored code."""
