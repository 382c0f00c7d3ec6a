"""Store what belongs to a service, not to an experiment: tokens, the audit trail, webhooks, when stored code was last used."""
