"""The node's HTTP face: routes by noun over one small exchange type; no decisions are made here."""
