"""Who may come in: room, a place, fair turns, and what is short when there is none."""
