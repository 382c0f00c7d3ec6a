"""From the best checkpoint to production: exports and deployments. `docs/serving.md` shows both."""
