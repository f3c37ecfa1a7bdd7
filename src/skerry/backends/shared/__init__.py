"""What several backends need: cgroups v1 and v2, the launcher's client. Knows no backend."""
