"""What sandboxes may reach, and the proxy that lets them: the only way out of one."""
