"""Generated from proto/swarmfree/v1 by scripts/generate_protos.py; not edited by hand."""
