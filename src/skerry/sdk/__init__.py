"""The client: one async implementation over HTTP; the sync face is wrapped from it."""
