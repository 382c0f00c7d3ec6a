"""What users do with experiments: check a spec, create, pause, cancel, preview, show the lineage."""
