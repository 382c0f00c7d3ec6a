"""The experiments of a home: check a spec, create, pause, cancel, preview, show the lineage."""
