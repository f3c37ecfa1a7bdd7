"""How a node carries more than fits at once: pressure is seen, cold memory is given back."""
