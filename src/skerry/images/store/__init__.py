"""Layers in a store: names, manifests, leases, collection, scrub, and copies on a node."""
