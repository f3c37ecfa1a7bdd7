"""`skerry trace`: reading, checking, comparing and exporting what was recorded."""
