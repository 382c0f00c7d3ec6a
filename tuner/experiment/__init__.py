"""The operations on experiments: check a spec, create, pause, cancel, preview, show the lineage."""
