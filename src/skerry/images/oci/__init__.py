"""OCI images and docker archives: read with suspicion, fetched and pushed through skopeo."""
