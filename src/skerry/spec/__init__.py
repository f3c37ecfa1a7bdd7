"""What a sandbox, image, command and verdict is: frozen types, ids, states, limits. No I/O."""
